// Returns what is wrong, in words, with the part of the page that `within` selects, as it stands.
(within) => {
  const faults = [];
  const root = document.documentElement, part = document.querySelector(within);
  if (root.scrollWidth > root.clientWidth)
    faults.push(`is ${root.scrollWidth} pixels wide, where there are ${root.clientWidth}`);

  const channels = (colour) => {
    const [r, g, b, a = 1] = colour.match(/[\d.]+/g).map(Number);
    return { rgb: [r, g, b], a };
  };
  const over = (above, below, alpha) => above.map((x, i) => alpha * x + (1 - alpha) * below[i]);
  const luminance = (rgb) => {  // as WCAG 2 has it
    const [r, g, b] = rgb.map((x) => (x /= 255) <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(channels(getComputedStyle(e).backgroundColor));
    const page = matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
    return layers.reduceRight((below, { rgb, a }) => over(rgb, below, a), page);
  };
  const opacity = (element) => {
    let alpha = 1;
    for (let e = element; e; e = e.parentElement) alpha *= Number(getComputedStyle(e).opacity);
    return alpha;
  };
  const shown = (element) => element.checkVisibility({ visibilityProperty: true });
  const contrast = (element, colour) => {
    const below = ground(element), { rgb, a } = channels(colour);
    const [x, y] = [luminance(over(rgb, below, a * opacity(element))), luminance(below)];
    return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
  };
  const dark = luminance(ground(document.body)) < 0.2;
  if (dark !== matchMedia("(prefers-color-scheme: dark)").matches)
    faults.push(`is ${dark ? "dark" : "light"}, where the reader's system is not`);

  const walker = document.createTreeWalker(part, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const element = node.parentElement, text = node.data.trim().slice(0, 30);
    if (!text || ["STYLE", "SCRIPT", "title"].includes(element.tagName) || !shown(element)) continue;
    const style = getComputedStyle(element);
    const ratio = contrast(element, element.ownerSVGElement ? style.fill : style.color);
    if (ratio < 4.5) faults.push(`has "${text}" at a contrast of ${ratio.toFixed(1)}, below 4.5`);
    if (parseFloat(style.fontSize) < 11) faults.push(`has "${text}" in letters of ${style.fontSize}`);
  }

  for (const line of part.querySelectorAll("polyline, circle")) {
    const style = getComputedStyle(line);
    const ratio = contrast(line, style.fill === "none" ? style.stroke : style.fill);
    if (ratio < 3) faults.push(`has a line at a contrast of ${ratio.toFixed(1)}, below 3`);
  }

  for (const svg of part.querySelectorAll("svg")) {
    if (!shown(svg)) continue;
    const frame = svg.getBoundingClientRect();
    const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
    boxes.forEach(([text, a], i) => {
      const inside = a.left > frame.left - 1 && a.right < frame.right + 1 && a.top > frame.top - 1 && a.bottom < frame.bottom + 1;
      if (!inside) faults.push(`cuts "${text}" off at the edge of a picture`);
      for (const [other, b] of boxes.slice(i + 1)) {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 1 && high > 4) faults.push(`has "${text}" on "${other}"`);  // boxes hold room above the letters
      }
    });
  }

  for (const element of part.querySelectorAll("*")) {
    const style = getComputedStyle(element);
    const cut = element.scrollWidth > element.clientWidth + 1 && ["hidden", "clip"].includes(style.overflowX);
    if (cut && shown(element)) faults.push(`cuts off what "${element.textContent.trim().slice(0, 30)}" says`);
  }
  for (const image of part.querySelectorAll("img"))
    if (!image.naturalWidth) faults.push(`has an image that isn't there: ${image.alt || image.src.slice(0, 60)}`);
  return [...new Set(faults)];
}
