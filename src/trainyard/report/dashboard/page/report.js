"use strict";
// Draws the panels of the page with uPlot from the data in the page. Without this script the SVG charts stay.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const several = data.runs.length > 1;
  const off = new Set(); // "panel/run/figure" and "run" of what is switched off
  const plots = new Map(); // the node of a panel -> its plot, for the panels that are visible
  let axis = "step", logarithmic = false, smoothing = 0, busy = false, zoomed = false;
  document.documentElement.classList.add("scripted");

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const on = (id, event, action) => document.getElementById(id)?.addEventListener(event, action);
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
  const onAxis = (value) => (axis === "time" ? duration(value) : number(value));

  // The place of a step on the chosen axis, between the known ones on a straight line.
  const place = (run, step) => {
    const known = data.runs[run].axes[axis];
    if (axis === "step" || !known) return step;
    const { steps, values } = known, found = steps.findIndex((one) => one >= step);
    const after = found < 0 ? steps.length - 1 : Math.max(found, 1);
    const share = (step - steps[after - 1]) / (steps[after] - steps[after - 1] || 1);
    return values[after - 1] + Math.max(0, Math.min(1, share)) * (values[after] - values[after - 1]);
  };
  const isOff = (panel, { run, figure }) => off.has(`${panel}/${run}/${figure}`) || off.has(String(run));
  // The exponential mean of TensorBoard, without the pull of its first value.
  const smooth = (values) => {
    let sum = 0, weight = 0;
    return values.map((value) => {
      sum = sum * smoothing + (1 - smoothing) * value;
      weight = weight * smoothing + 1 - smoothing;
      return sum / weight;
    });
  };
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

  // The range of an axis: values that differ by less than a thousandth are a flat line, not noise.
  const range = (fromZero) => (_, min, max) => {
    if (min === null) return [0, 1];
    const from = fromZero ? Math.min(0, min) : min;
    const isFlat = max - from <= Math.abs(max) / 1000;
    const room = isFlat ? Math.abs(max) * 0.1 || 1 : (max - from) * 0.05;
    return [fromZero && from === 0 ? 0 : from - room, max + room];
  };

  const build = (node) => {
    const at = Number(node.dataset.panel), panel = data.panels[at], [low, high] = ends();
    const outputs = node.closest("figure").querySelectorAll("output");
    const log = logarithmic && panel.series.every((line) => line.values.every((value) => value >= 0));
    const table = (run, steps, values) => [
      steps.map((step) => place(run, step)), values.map((value) => (log && value <= 0 ? null : value))];
    const tables = panel.series.map((line) => table(line.run, line.steps, line.values));
    const means = smoothing ? panel.series.map((line) => {
      const { steps, values } = line.means ?? line;
      return table(line.run, steps, line.dots ? values : smooth(values)); // a few values are no noise
    }) : [];
    const joined = uPlot.join([[[low, high], [null, null]], ...tables, ...means]);
    joined.splice(1, 1); // it only made the axis of every panel as long as the longest
    const looks = { stroke: colour("--muted"), grid: { stroke: colour("--edge"), width: 1 },
      ticks: { stroke: colour("--edge"), width: 1 }, font: "12px system-ui, sans-serif" };
    const lineOf = (faint) => (line) => {
      const paint = colour(`--c${(several ? line.run : line.figure) % 6}`);
      return { show: !isOff(at, line), stroke: faint ? `${paint}59` : paint, spanGaps: true, width: faint ? 1 : 1.75,
        dash: several && line.figure ? [[6, 4], [2, 3], [8, 3, 2, 3], [1, 2]][line.figure - 1] : [],
        points: { show: line.dots && !faint, size: 6 } };
    };
    const plot = new uPlot({
      width: node.clientWidth, height: at === 0 ? 320 : 200, legend: { show: false },
      cursor: { drag: { x: true, y: false }, sync: { key: "report", setSeries: false,
        filters: { pub: (kind) => kind !== "mousedown" && kind !== "mouseup" && kind !== "dblclick" } } },
      scales: { x: { time: false, range: (_, min, max) => [min, max] },
        y: { distr: log ? 3 : 1, range: log ? undefined : range(panel.zero) } },
      axes: [
        { ...looks, space: 60, size: 32, values: (_, ticks) => ticks.map(onAxis) },
        { ...looks, size: 62, values: (_, ticks) => ticks.map((one) => one === null ? "" : number(one) + panel.unit) },
      ],
      series: [{}, ...panel.series.map(lineOf(smoothing > 0)), ...means.map((_, index) => lineOf(false)(panel.series[index]))],
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
          outputs.forEach((output, index) => {
            output.value = here === null ? "" : nearest(tables[index], here, panel.unit);
          });
        }],
      },
    }, joined, node);
    plots.set(node, plot);
    onTouch(plot, [low, high]);
    return plot;
  };

  // The value of the row that is nearest to a place on the axis, with its own step or time.
  const nearest = ([places, values], here, unit) => {
    let best = 0;
    places.forEach((one, index) => { if (Math.abs(one - here) < Math.abs(places[best] - here)) best = index; });
    if (here > places[places.length - 1] || here < places[0] || values[best] === null) return "";
    return `${number(values[best])}${unit} at ${onAxis(places[best])}`;
  };

  const zoom = (plot, [low, high], middle, factor, shift = 0) => {
    const { min, max } = plot.scales.x, width = Math.min(high - low, (max - min) * factor);
    const begin = Math.max(low, Math.min(high - width, middle - (middle - min) * (width / (max - min)) - shift));
    plot.setScale("x", { min: begin, max: begin + width });
  };
  // One finger reads the values, and moves a zoomed chart; two fingers zoom.
  const onTouch = (plot, whole) => {
    let last = null;
    const read = (event) => {
      const left = plot.over.getBoundingClientRect().left, at = [...event.touches].map((one) => one.clientX - left);
      return { at: (Math.min(...at) + Math.max(...at)) / 2, apart: Math.max(...at) - Math.min(...at), count: at.length };
    };
    plot.over.addEventListener("touchstart", (event) => { last = read(event); }, { passive: true });
    plot.over.addEventListener("touchmove", (event) => {
      const now = read(event);
      if (last && now.count === last.count) {
        const scale = plot.scales.x, unit = (scale.max - scale.min) / plot.over.clientWidth;
        const factor = now.count > 1 ? last.apart / (now.apart || 1) : 1;
        if (now.count > 1 || zoomed) zoom(plot, whole, scale.min + last.at * unit, factor, (now.at - last.at) * unit * factor);
        plot.setCursor({ left: now.at, top: plot.over.clientHeight / 2 });
      }
      last = now;
      if (now.count > 1) event.preventDefault();
    }, { passive: false });
  };
  // Arrows move the cursor from row to row, + and - zoom, Escape shows everything.
  const onKey = (event) => {
    const plot = plots.get(event.currentTarget), { left } = plot.cursor, places = plot.data[0], { min, max } = plot.scales.x;
    const here = left >= 0 ? plot.posToVal(left, "x") : min;
    const move = { ArrowRight: 1, ArrowLeft: -1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "+" || event.key === "-") zoom(plot, ends(), here, event.key === "+" ? 0.5 : 2);
    else if (event.key === "Escape") draw();
    else if (move) {
      const seen = places.filter((one) => one >= min && one <= max);
      const nearestPlace = seen.reduce((best, one, index) => Math.abs(one - here) < Math.abs(seen[best] - here) ? index : best, 0);
      const next = seen[Math.max(0, Math.min(seen.length - 1, nearestPlace + (left < 0 ? 0 : move)))];
      plot.setCursor({ left: plot.valToPos(next, "x"), top: plot.over.clientHeight / 2 });
      const lines = event.currentTarget.closest("figure").querySelectorAll(".legend li");
      document.getElementById("reading").textContent = [...lines].map((line) => line.textContent.trim()).join(", ");
    } else return;
    event.preventDefault();
  };

  const save = (name, blob) => {
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const table = (panel) => {
    const joined = uPlot.join(panel.series.map(({ steps, values }) => [steps, values]));
    const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const heads = ["step", ...panel.series.map(({ name, label }) => quoted(several ? `${name} ${label}` : name))];
    return [heads, ...joined[0].map((_, row) => joined.map((column) => column[row] ?? ""))].map((row) => `${row.join(",")}\n`).join("");
  };
  const picture = (plot, name) => {
    const { canvas } = plot.ctx, copy = Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
    const ctx = copy.getContext("2d");
    ctx.fillStyle = colour("--card");
    ctx.fillRect(0, 0, copy.width, copy.height);
    ctx.drawImage(canvas, 0, 0);
    copy.toBlob((blob) => save(name, blob));
  };
  const download = ({ target: { dataset: { save: kind }, parentNode } }) => {
    const node = parentNode.closest("figure").querySelector(".plot"), panel = data.panels[node.dataset.panel];
    const name = `${panel.title.replace(/[^\w]+/g, "-").toLowerCase()}.${kind}`;
    if (kind === "png") picture(plots.get(node), name);
    else if (kind === "csv") save(name, new Blob([table(panel)], { type: "text/csv" }));
    else save(name, new Blob([JSON.stringify(panel)], { type: "application/json" }));
  };

  const nodes = [...document.querySelectorAll(".plot")];
  const draw = () => {
    busy = true;
    plots.forEach((plot) => plot.destroy());
    plots.clear();
    nodes.filter((node) => node.clientWidth).forEach(build);
    busy = zoomed = false;
  };
  const show = () => plots.forEach((plot, node) => data.panels[node.dataset.panel].series.forEach((line, index, all) => {
    const visible = !isOff(node.dataset.panel, line);
    for (const place of [index + 1, ...(smoothing ? [all.length + index + 1] : [])]) {
      if (plot.series[place].show !== visible) plot.setSeries(place, { show: visible });
    }
  }));

  document.querySelectorAll(".controls, .save").forEach((node) => { node.hidden = false; });
  document.querySelectorAll("input[data-run], input[data-line]").forEach((node) => {
    node.checked = true; // some browsers restore what it was before the page was loaded anew
    const key = node.dataset.run ?? node.dataset.line;
    node.addEventListener("change", () => { node.checked ? off.delete(key) : off.add(key); show(); });
  });
  document.querySelectorAll(".save button").forEach((node) => node.addEventListener("click", download));
  document.querySelectorAll("details.group").forEach((node) => node.addEventListener("toggle", draw));
  nodes.forEach((node) => node.addEventListener("keydown", onKey));
  on("axis", "change", (event) => { axis = event.target.value; draw(); });
  on("log", "change", (event) => { logarithmic = event.target.checked; draw(); });
  on("smoothing", "input", (event) => { smoothing = Number(event.target.value); draw(); });
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
  const slider = document.getElementById("smoothing");
  if (slider) { // noise that was thinned is a band: then its means are shown from the start
    slider.value = smoothing = data.panels.some((panel) => panel.series.some((line) => line.means)) ? 0.3 : 0;
  }
  draw();
})();
