// What a reader sees of TensorBoard's tabs, as plain values.
(() => {
  const own = (node) => [...(node.shadowRoot ? node.shadowRoot.childNodes : []), ...node.childNodes];
  const hidden = ["STYLE", "SCRIPT", "TEMPLATE", "DOM-MODULE", "NOSCRIPT"];
  const below = function* (node) {  // also what lies in shadows, as most of the older tabs do
    for (const child of own(node)) {
      if (hidden.includes(child.tagName)) continue;
      yield child;
      yield* below(child);
    }
  };
  const words = (node) => [...below(node)].filter((x) => x.nodeType === 3).map((x) => x.data.trim()).filter(Boolean);

  return {
    // Each card of Time Series: its kind and name, the last value by run, how many lines, the picture's width.
    cards: () => [...document.querySelectorAll("card-view")].map((card) => {
      const rows = [...card.querySelectorAll("tb-data-table-content-row")].map((row) =>
        [...row.querySelectorAll("tb-data-table-content-cell")].map((cell) => cell.innerText.trim()).filter(Boolean));
      const drawn = [...card.querySelectorAll(".series-view > svg > path, .series-view > svg > circle")];
      return {
        kind: ["scalar", "image", "histogram"].find((kind) => card.querySelector(`${kind}-card`)),
        name: card.querySelector("tb-truncated-path")?.title,
        values: Object.fromEntries(rows.map(([run, , value]) => [run, value])),
        lines: new Set(drawn.map((each) => each.style.stroke || each.style.fill)).size,
        width: card.querySelector("image-card img")?.naturalWidth ?? 0,
        bars: card.querySelectorAll("tb-histogram path").length,
      };
    }),

    // Each text by its run and tag, as it is shown.
    texts: () => [...below(document)].filter((x) => x.tagName === "TF-TEXT-LOADER").map(words),

    // Has all figures shown, which by itself HParams doesn't.
    choose: () => {
      for (const box of below(document))
        if (box.tagName === "PAPER-CHECKBOX" && box.classList.contains("metric-checkbox") && !box.checked) box.click();
    },

    // The table of HParams: its head, and a row for each trial.
    trials: () => {
      const grid = [...below(document)].find((x) => x.tagName === "VAADIN-GRID");
      if (!grid) return [];
      const cells = [...grid.querySelectorAll("vaadin-grid-cell-content")];
      const lines = new Map();
      for (const cell of cells) {
        const { top, bottom, left } = cell.getBoundingClientRect(), middle = Math.round(top + bottom);
        if (bottom > top) lines.set(middle, [...(lines.get(middle) ?? []), [left, words(cell).join(" ")]]);
      }
      const sorted = (line) => line.sort(([a], [b]) => a - b).map(([, text]) => text);
      return [...lines].sort(([a], [b]) => a - b).map(([, line]) => sorted(line));
    },
  };
})()
