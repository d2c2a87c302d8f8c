"use strict";
// Draws the panels of the page with uPlot from the data in the page. Without this script the SVG charts stay.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const several = data.runs.length > 1;
  const off = new Set(); // "panel/run/figure" and "run" of what is switched off
  let byTime = false, logarithmic = false, busy = false, zoomed = false, plots = [];
  document.documentElement.classList.add("scripted");

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (value) => {
    const size = Math.abs(value);
    const [scale, suffix] = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]].find(([one]) => size >= one) || [1, ""];
    if (size >= 1e15 || (size && size < 1e-3)) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
    return String(Number((value / (suffix === "k" ? 1e3 : scale)).toPrecision(4))) + suffix;
  };
  const duration = (seconds) => {
    if (seconds < 3600) return `${Math.floor(seconds / 60)}:${String(Math.round(seconds % 60)).padStart(2, "0")}`;
    return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} m`;
  };
  // Seconds from the first row until a step, between the known ones on a straight line.
  const timeOf = (run, step) => {
    const [steps, times] = data.runs[run].clock;
    if (!steps.length) return step;
    const after = steps.findIndex((one) => one >= step);
    if (after < 0) return times[times.length - 1];
    if (after === 0) return times[0];
    const share = (step - steps[after - 1]) / (steps[after] - steps[after - 1] || 1);
    return times[after - 1] + share * (times[after] - times[after - 1]);
  };
  const place = (run, step) => (byTime ? timeOf(run, step) : step);
  const isOff = (panel, { run, figure }) => off.has(`${panel}/${run}/${figure}`) || off.has(String(run));

  const ends = () => {
    const all = data.panels.flatMap((panel) => panel.series.flatMap((line) => [
      place(line.run, line.steps[0]), place(line.run, line.steps[line.steps.length - 1])]));
    return [Math.min(...all), Math.max(...all)];
  };

  const drawMarks = (plot, withWords) => {
    const { ctx, bbox } = plot, ratio = devicePixelRatio, rows = [0, 0, 0];
    ctx.save();
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "top";
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    data.runs.forEach((run, index) => run.marks.forEach(([step, words]) => {
      if (off.has(String(index))) return;
      const x = plot.valToPos(place(index, step), "x", true);
      if (x < bbox.left || x > bbox.left + bbox.width) return;
      ctx.strokeStyle = ctx.fillStyle = several ? colour(`--c${index % 6}`) : colour("--muted");
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const width = ctx.measureText(words).width;
      const begin = Math.min(x + 3 * ratio, bbox.left + bbox.width - width);
      const row = rows.findIndex((end) => end <= begin);
      if (withWords && row >= 0) {
        rows[row] = begin + width + 6 * ratio;
        ctx.fillText(words, begin, bbox.top + (2 + 13 * row) * ratio);
      }
    }));
    ctx.restore();
  };

  const build = (node) => {
    const at = Number(node.dataset.panel), panel = data.panels[at], [low, high] = ends();
    const output = ({ run, figure }) =>
      document.querySelector(`input[data-line="${at}/${run}/${figure}"] ~ output`);
    const log = logarithmic && panel.series.every((line) => line.values.every((value) => value >= 0));
    const tables = panel.series.map((line) => [
      line.steps.map((step) => place(line.run, step)), line.values.map((v) => (log && v <= 0 ? null : v))]);
    const joined = uPlot.join([[[low, high], [null, null]], ...tables]);
    joined.splice(1, 1); // it only made the axis of every panel as long as the longest
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--edge"), width: 1 },
      ticks: { stroke: colour("--edge"), width: 1 }, font: "12px system-ui, sans-serif" };
    const plot = new uPlot({
      width: node.clientWidth, height: at === 0 ? 320 : 220, legend: { show: false },
      cursor: { drag: { x: true, y: false }, sync: { key: "report", setSeries: false,
        filters: { pub: (kind) => kind !== "mousedown" && kind !== "mouseup" && kind !== "dblclick" } } },
      scales: { x: { time: false, range: (_, min, max) => [min, max] },
        y: { distr: log ? 3 : 1, range: log ? undefined : (_, min, max) => {
          if (min === null) return [0, 1];
          const from = panel.zero ? Math.min(0, min) : min, room = (max - from) * 0.05 || Math.abs(max) * 0.1 || 1;
          return [panel.zero && from === 0 ? 0 : from - room, max + room];
        } } },
      axes: [
        { ...axis, space: 60, values: (_, ticks) => ticks.map((one) => byTime ? duration(one) : number(one)) },
        { ...axis, size: 62, values: (_, ticks) => ticks.map((one) => one === null ? "" : number(one) + panel.unit) },
      ],
      series: [{}, ...panel.series.map((line) => {
        const paint = colour(`--c${(several ? line.run : line.figure) % 6}`);
        return { show: !isOff(at, line), stroke: line.faint ? `${paint}59` : paint, spanGaps: true,
          width: line.faint ? 1 : 1.75, dash: several && line.figure ? [[6, 4], [2, 3], [8, 3, 2, 3], [1, 2]][line.figure - 1] : [],
          points: { show: line.dots, size: 6 } };
      })],
      hooks: {
        draw: [(self) => drawMarks(self, at === 0)],
        setScale: [(self, key) => {
          if (key !== "x" || busy) return;
          const { min, max } = self.scales.x;
          busy = true;
          zoomed = min > low || max < high;
          plots.forEach((other) => other !== self && other.setScale("x", { min, max }));
          busy = false;
        }],
        setCursor: [(self) => {
          const here = self.cursor.left >= 0 ? self.posToVal(self.cursor.left, "x") : null;
          panel.series.forEach((line, index) => {
            const isMean = index && panel.series[index - 1].faint; // the rows are read, not their means
            if (!isMean) output(line).value = here === null ? "" : nearest(tables[index], here, panel.unit);
          });
        }],
      },
    }, joined, node);
    return plot;
  };

  // The value of the row that is nearest to a place on the axis, with its own step or time.
  const nearest = ([places, values], here, unit) => {
    let best = 0;
    places.forEach((one, index) => { if (Math.abs(one - here) < Math.abs(places[best] - here)) best = index; });
    if (here > places[places.length - 1] || here < places[0] || values[best] === null) return "";
    return `${number(values[best])}${unit} at ${byTime ? duration(places[best]) : number(places[best])}`;
  };

  const draw = () => {
    busy = true;
    plots.forEach((plot) => plot.destroy());
    plots = [...document.querySelectorAll(".plot")].map(build);
    busy = zoomed = false;
  };
  const show = () => plots.forEach((plot, at) => data.panels[at].series.forEach((line, index) => {
    if (plot.series[index + 1].show === isOff(at, line)) plot.setSeries(index + 1, { show: !isOff(at, line) });
  }));

  document.querySelectorAll(".controls").forEach((node) => { node.hidden = false; });
  document.querySelectorAll("input[data-run], input[data-line]").forEach((node) => {
    node.checked = true; // some browsers restore what it was before the page was loaded anew
    const key = node.dataset.run ?? node.dataset.line;
    node.addEventListener("change", () => { node.checked ? off.delete(key) : off.add(key); show(); });
  });
  const on = (id, event, action) => document.getElementById(id)?.addEventListener(event, action);
  on("axis", "change", (event) => { byTime = event.target.value === "time"; draw(); });
  on("log", "change", (event) => { logarithmic = event.target.checked; draw(); });
  on("reset", "click", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let wait = 0, width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone hides its address bar
    width = innerWidth;
    clearTimeout(wait);
    wait = setTimeout(draw, 150);
  });
  if (data.refresh) setInterval(() => { if (!zoomed && !off.size) location.reload(); }, data.refresh * 1000);
  draw();
})();
