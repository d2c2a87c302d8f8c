"""The CSS of the HTML report: light and dark, wide and narrow, on screen and on paper. It loads nothing."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b2330; --muted: #5a6474; --edge: #e1e5eb; --code: #f1f3f6;
  --first: #2f6fde; --second: #c8640a; --good: #17784a; --bad: #b92c39; --warn: #8a5d00; --going: #2f6fde;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #10141a; --card: #181d25; --ink: #e5e9f0; --muted: #9aa5b6; --edge: #2b323d; --code: #10141a;
    --first: #73abff; --second: #f2a65e; --good: #52c78f; --bad: #ff808a; --warn: #e3b556; --going: #73abff;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 980px; margin: 0 auto; padding: 32px 20px 48px; }
article + article { margin-top: 56px; padding-top: 32px; border-top: 2px solid var(--edge); }
h1 { font-size: 27px; line-height: 1.2; margin: 6px 0 4px; letter-spacing: -0.01em; text-wrap: balance; }
h2 { font-size: 15px; margin: 0 0 12px; }
p { margin: 0; }
code, pre { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
pre {
  margin: 8px 0 0; padding: 12px 14px; background: var(--code); border: 1px solid var(--edge);
  border-radius: 8px; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere;
}
.kicker, .sub { color: var(--muted); font-size: 14px; overflow-wrap: anywhere; }
.badge {
  display: inline-block; padding: 1px 10px; border-radius: 999px; border: 1.5px solid var(--edge);
  font-size: 13px; font-weight: 600;
}
.proven { color: var(--good); } .failed { color: var(--bad); }
.degraded { color: var(--warn); } .going { color: var(--going); }
.card {
  background: var(--card); border: 1px solid var(--edge); border-radius: 12px; padding: 18px 20px;
  margin-top: 16px; min-width: 0;
}
.callout { border-left: 4px solid currentColor; }
.callout > * { color: var(--ink); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(118px, 1fr)); gap: 12px;
  margin-top: 20px; }
.tile { background: var(--card); border: 1px solid var(--edge); border-radius: 12px; padding: 12px 16px; }
.tile .what { color: var(--muted); font-size: 13px; }
.tile .value { font-size: 21px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile .more { color: var(--muted); font-size: 13px; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 16px; }
.proof { list-style: none; margin: 0; padding: 0; }
.proof li { display: grid; grid-template-columns: 24px 100px 1fr; gap: 4px; padding: 7px 0; }
.proof li + li { border-top: 1px solid var(--edge); }
.proof .mark { font-weight: 700; }
.proof .name { font-weight: 600; }
.proof .evidence { min-width: 0; overflow-wrap: anywhere; }
.chart { display: block; width: 100%; height: auto; }
.chart text { fill: var(--muted); font-size: 12px; font-variant-numeric: tabular-nums; }
.chart .grid { stroke: var(--edge); stroke-width: 1; }
.chart .tick { stroke: var(--muted); stroke-width: 1; }
.chart polyline { fill: none; stroke-linejoin: round; stroke-linecap: round; }
.chart .raw { stroke: var(--first); stroke-width: 1; opacity: 0.32; }
.chart .mean { stroke: var(--first); stroke-width: 2; }
.chart polyline.dots { stroke: var(--second); stroke-width: 1.5; stroke-dasharray: 4 4; }
.chart circle.dots { fill: var(--card); stroke: var(--second); stroke-width: 2; }
.narrow { display: none; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; color: var(--muted); font-size: 13px; }
.legend i { display: inline-block; width: 18px; height: 0; margin-right: 6px; vertical-align: middle; }
.legend .mean { border-top: 3px solid var(--first); }
.legend .dots { border-top: 3px dashed var(--second); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 6px 14px 6px 0; border-top: 1px solid var(--edge); vertical-align: top; }
thead th { border-top: 0; color: var(--muted); font-weight: 500; font-size: 13px; white-space: nowrap; }
tbody th { color: var(--muted); font-weight: 500; width: 130px; }
td { overflow-wrap: anywhere; }
td.figure, th.figure { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.fixed { white-space: nowrap; }
summary { cursor: pointer; font-weight: 600; }
details[open] > summary { margin-bottom: 10px; }
footer { margin-top: 28px; color: var(--muted); font-size: 13px; overflow-wrap: anywhere; }
@media (max-width: 640px) {
  main { padding: 20px 12px 32px; }
  h1 { font-size: 23px; }
  .card { padding: 14px; }
  .pair { grid-template-columns: 1fr; gap: 0; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; }
  .tile { padding: 10px 12px; }
  .proof li { grid-template-columns: 22px 1fr; }
  .proof .evidence { grid-column: 2; }
  .wide { display: none; }
  .narrow { display: block; }
  tbody th { width: 96px; }
}
@media print {
  :root { --page: #fff; --card: #fff; --ink: #000; --muted: #444; --edge: #ccc; --code: #fff;
          --first: #1f55b0; --second: #a34f00; --good: #17784a; --bad: #b92c39; --warn: #8a5d00; }
  main { max-width: none; padding: 0; }
  .card, .tile { break-inside: avoid; }
  details > summary { list-style: none; }
}
"""
