"use strict";
// The list of runs: sort, filter, compare. Rows are made for the runs that are shown, so that 20,000 runs are quick.
(() => {
  const { fields, rows, command } = JSON.parse(document.getElementById("data").textContent);
  const runs = rows.map((row) => Object.fromEntries(fields.map((name, place) => [name, row[place]])));
  const PAGE = 100;
  let shown = PAGE, sorted = "created", descending = true;
  const ticked = new Set();
  const find = (id) => document.getElementById(id);

  const make = (tag, text = "", more = {}) => {
    const node = document.createElement(tag);
    node.textContent = text;
    Object.entries(more).forEach(([name, value]) => node.setAttribute(name, value));
    return node;
  };
  const loss = (value) => (Math.abs(value) >= 0.1 && Math.abs(value) < 100 ? value.toFixed(2) : value.toPrecision(3));
  const time = (seconds) => {
    if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
    return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} m`;
  };
  const verdict = ({ proof, status }) =>
    (proof === "proven" ? "proven" : status === "running" || proof === "not judged" ? "degraded" : "failed");

  // A line of the loss of each run; they share one scale.
  const curves = (several, width, height, name) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const values = several.flatMap(({ curve }) => curve), low = Math.min(...values), high = Math.max(...values);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("class", "curve");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `${name}: ${loss(values[0])} to ${loss(values[values.length - 1])}`);
    several.forEach(({ curve }, index) => {
      const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
      const flat = high - low <= 1e-9 * Math.abs(high);
      line.setAttribute("class", `c${index % 6}`);
      line.setAttribute("points", curve.map((value, place) => [
        (place * width / Math.max(1, curve.length - 1)).toFixed(1),
        (flat ? height / 2 : height - 2 - (value - low) / (high - low) * (height - 4)).toFixed(1)].join()).join(" "));
      svg.append(line);
    });
    return svg;
  };

  // Field, its head, and its cell: a text or a node.
  const columns = [
    ["run", "run", (run) => (run.page ? make("a", run.name, { href: run.page }) : run.name)],
    ["created", "started", (run) => (run.created ? new Date(run.created * 1000).toISOString().slice(0, 16).replace("T", " ") : "")],
    ["commit", "commit", (run) => make("code", run.commit.slice(0, 7))],
    ["proof", "proof", (run) => make("span", run.proof, { class: verdict(run) })],
    ["status", "training", (run) => run.status],
    ["steps", "steps", (run) => run.steps.toLocaleString("en"), true],
    ["loss", "loss", (run) => loss(run.loss), true],
    ["validation_loss", "validation", (run) => loss(run.validation_loss), true],
    ["curve", "curve", (run) => (run.curve.length > 1 ? curves([run], 90, 22, "loss") : "")],
    ["seconds", "time", (run) => time(run.seconds), true],
    ["tags", "tags and note", (run) => [...run.tags.map((tag) => make("span", tag, { class: "tag" })), run.note]],
  ].filter(([field]) => runs.some((run) => (Array.isArray(run[field]) ? run[field].length : run[field] !== null && run[field] !== "")));

  const cell = (run, [field, head, show, isNumber]) => {
    const node = make(field === "run" ? "th" : "td", "", { "data-label": head, ...(isNumber ? { class: "figure" } : {}) });
    if (run[field] !== null) node.append(...[show(run)].flat());
    return node;
  };

  const matching = () => {
    const words = find("filter").value.toLowerCase().split(/\s+/).filter(Boolean), proof = find("proof").value;
    return runs.filter((run) => (!proof || run.proof.startsWith(proof))
      && words.every((word) => run.text.includes(word)));
  };
  const compare = (a, b) => {
    const [one, other] = [a[sorted], b[sorted]];
    if (one === null || other === null) return (one === null) - (other === null); // unknown values are last
    return (one < other ? -1 : one > other ? 1 : 0) * (descending ? -1 : 1);
  };

  const list = () => {
    const found = matching().sort(compare);
    document.querySelector("tbody").replaceChildren(...found.slice(0, shown).map((run) => {
      const row = make("tr"), box = make("td"), tick = make("input", "", { type: "checkbox", "aria-label": `compare ${run.name}` });
      tick.checked = ticked.has(run);
      tick.addEventListener("change", () => { tick.checked ? ticked.add(run) : ticked.delete(run); lay(); });
      box.append(tick);
      row.append(box, ...columns.map((column) => cell(run, column)));
      return row;
    }));
    find("more").hidden = found.length <= shown;
    find("count").textContent = `${found.length.toLocaleString("en")} of ${runs.length.toLocaleString("en")}`;
    document.querySelectorAll("th[data-field]").forEach((head) => {
      head.setAttribute("aria-sort", head.dataset.field !== sorted ? "none" : descending ? "descending" : "ascending");
    });
  };

  // The ticked runs side by side: their curves over each other, and the columns in which they differ.
  const lay = () => {
    const chosen = [...ticked], place = find("compared");
    place.hidden = !chosen.length;
    const table = make("table"), body = make("tbody"), head = make("tr");
    head.append(make("td"), ...chosen.map((run, index) => {
      const name = make("th", "", { scope: "col" });
      name.append(make("i", "", { class: `key c${index % 6}` }), run.name);
      return name;
    }));
    body.append(head, ...columns.filter(([field]) => !["run", "curve"].includes(field)).map((column) => {
      const row = make("tr");
      row.append(make("th", column[1], { scope: "row" }), ...chosen.map((run) => cell(run, column)));
      return row;
    }));
    table.append(body);
    const wide = make("div", "", { class: "wide", tabindex: 0, role: "region", "aria-label": "Figures of the compared runs" });
    wide.append(table);
    const drawn = chosen.filter(({ curve }) => curve.length > 1);
    place.replaceChildren(make("h2", `Compared: ${chosen.length}`), ...(drawn.length ? [curves(drawn, 600, 160, "loss over the run"), make("p", "The loss over the run, on one scale.", { class: "hint" })] : []), wide,
      ...(chosen.length > 1 && command ? [make("pre", `${command} ${chosen.map(({ run }) => run).join(" ")} --output compared.html`)] : []));
  };

  runs.forEach((run) => {
    run.name = run.run.split("/").pop();
    run.text = [run.run, run.run_id, run.commit, run.status, run.proof, run.note, ...run.tags].join(" ").toLowerCase();
  });
  const heads = columns.map(([field, head, , isNumber]) => {
    const node = make("th", "", { scope: "col", "data-field": field, ...(isNumber ? { class: "figure" } : {}) });
    if (["curve", "tags"].includes(field)) node.textContent = head;
    else {
      const button = make("button", head, { type: "button", class: "sort" });
      button.addEventListener("click", () => {
        descending = sorted === field ? !descending : field === "created";
        sorted = field;
        list();
      });
      node.append(button);
    }
    return node;
  });
  document.querySelector("thead tr").append(make("td"), ...heads);
  const restart = () => { shown = PAGE; list(); };
  find("filter").addEventListener("input", restart);
  find("proof").addEventListener("change", restart);
  find("more").addEventListener("click", () => { shown += 10 * PAGE; list(); });
  document.querySelector(".controls").hidden = false;
  document.documentElement.classList.add("scripted");
  list();
})();
