"""The page's CSS: light or dark as the system prefers, in one column or several as width allows."""

# Colours for readers with any colour vision, after Okabe and Ito (2008). Contrast is at least 4.5 to 1 (WCAG 2); dark
# mode has lighter ones.
STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1b1b1b; --faint: #666; --rule: #ddd; --good: #00664a;
  --bad: #a93800; --c0: #0072b2; --c1: #c04f00; --c2: #007d5a; --c3: #b03a80; --c4: #7b4b1e; --c5: #8a6d00;
  --c6: #6a5acd; --c7: #555; }
@media (prefers-color-scheme: dark) { :root { --ground: #16181a; --ink: #e6e6e6; --faint: #a0a0a0; --rule: #3a3d40;
  --good: #4cc9a0; --bad: #ff9a5c; --c0: #56a8e0; --c1: #ff8f45; --c2: #3cc79d; --c3: #e39ac4; --c4: #d2a679;
  --c5: #f0b93a; --c6: #a99cf5; --c7: #bbb; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 90rem; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1rem 0 .25rem; }
.verdict { font-size: 1.1rem; border-left: .25rem solid var(--c0); padding-left: .75rem; }
.faint, dt { color: var(--faint); } .finished { color: var(--good); } .failed, .never { color: var(--bad); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { white-space: nowrap; } td { overflow-wrap: break-word; min-width: 2rem;
  max-width: 24rem; }
.legend { display: flex; flex-wrap: wrap; gap: 0 1.5rem; list-style: none; padding: 0; margin: 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
figure { margin: 0; min-width: 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; display: block; }
svg text { font-size: 13px; fill: var(--faint); } svg .grid { stroke: var(--rule); }
svg polyline { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round; }
svg circle { fill: currentColor; } svg .dashed polyline { stroke-dasharray: 3 3; }
svg text.end { fill: currentColor; font-weight: 600; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); } .c6 { color: var(--c6); } .c7 { color: var(--c7); }
.samples { display: flex; flex-wrap: wrap; gap: 1rem; } .samples img { max-width: min(100%, 20rem); min-width: 8rem;
  image-rendering: pixelated; } pre { white-space: pre-wrap; font-size: .85rem; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0 1rem; margin: 0; } dd { margin: 0; }
@media (max-width: 40rem) { dl { grid-template-columns: minmax(0, 1fr); } dd { margin-bottom: .4rem; } }
"""
