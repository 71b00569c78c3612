"use strict";
// Sorts and filters tables, links numbers to their runs, opens the fold that a link names, and shows values of lines.
// Without it the page has the same content; nothing is fetched.
(() => {
  const FACETS = ["platform", "arm", "engine", "micro-batch"];
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  function element(name, attributes, text) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // Rows with the note below them, which moves along.
  function groups(body) {
    const found = [];
    for (const row of body.rows) {
      if (row.classList.contains("note") && found.length) found.at(-1).push(row);
      else found.push([row]);
    }
    return found;
  }

  function key(row, column, numeric) {
    const text = row.cells[column] ? row.cells[column].textContent.trim() : "";
    if (!numeric) return text;
    const number = /-?\d+(\.\d+)?(e[-+]?\d+)?/i.exec(text);
    return number && text !== "-" ? Number(number[0]) : NaN;
  }

  function sort(table, head, column) {
    const numeric = head.classList.contains("n");
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const keyed = groups(table.tBodies[0]).map((group) => [key(group[0], column, numeric), group]);
    keyed.sort(([a], [b]) => {
      // Rows without a number stay last in both directions.
      if (numeric) return Number.isNaN(a) || Number.isNaN(b) ? Number.isNaN(a) - Number.isNaN(b) : sign * (a - b);
      return sign * a.localeCompare(b, "en", { numeric: true });
    });
    for (const [, group] of keyed) table.tBodies[0].append(...group);
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  }

  for (const table of all("table.data")) {
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = element("button", { type: "button", title: "Sort by this column" });
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => sort(table, head, column));
    });
  }

  // The name of the config is the link for the keyboard; its numbers lead to the same place.
  for (const cell of all("tr[data-runs] td.n, td[data-runs]")) {
    const place = cell.dataset.runs || cell.parentElement.dataset.runs;
    if (!place || cell.textContent.trim() === "-" || cell.querySelector("a")) continue;
    const link = element("a", { href: "#" + place, tabindex: "-1", class: "quiet" });
    link.append(...cell.childNodes);
    cell.append(link);
  }

  function filter(bar) {
    const rows = all("tbody tr[data-platform], details.cell");
    const status = element("span", { role: "status" });
    const chosen = {};
    const update = () => {
      let shown = 0;
      for (const row of rows) {
        const fits = Object.entries(chosen).every(([facet, value]) => !value || row.getAttribute("data-" + facet) === value);
        row.hidden = !fits;
        if (row.nextElementSibling && row.nextElementSibling.classList.contains("note")) row.nextElementSibling.hidden = !fits;
        shown += fits && row.tagName === "TR";
      }
      status.textContent = shown + " of " + rows.filter((row) => row.tagName === "TR").length + " rows";
    };
    for (const facet of FACETS) {
      const values = [...new Set(rows.map((row) => row.getAttribute("data-" + facet)).filter(Boolean))];
      if (values.length < 2) continue;
      values.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
      const select = element("select", { name: facet });
      select.append(element("option", { value: "" }, "all"), ...values.map((value) => element("option", { value }, value)));
      select.addEventListener("change", () => { chosen[facet] = select.value; update(); });
      const label = element("label", {}, facet + " ");
      label.append(select);
      bar.append(label);
    }
    if (!bar.children.length) return;
    bar.prepend(element("span", {}, "Show"));
    bar.append(status);
    bar.hidden = false;
    update();
  }
  all("#filter").forEach(filter);

  function open() {
    let place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!place) return;
    for (let node = place; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    place.scrollIntoView();
  }
  addEventListener("hashchange", open);
  open();

  // The value of a line under the pointer, by the scales that the line carries.
  const tip = element("div", { id: "tip", hidden: "" });
  document.body.append(tip);
  const round = (value) => String(Number(value.toPrecision(5)));
  addEventListener("pointermove", (event) => {
    const chart = event.target.closest && event.target.closest("svg.chart");
    const line = chart && all("polyline[data-scales]", chart).at(-1);
    if (!line || !line.points.length) { tip.hidden = true; return; }
    const box = chart.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * chart.viewBox.baseVal.width;
    const near = [...line.points].reduce((a, b) => (Math.abs(b.x - x) < Math.abs(a.x - x) ? b : a));
    const [x0, x1, left, right, y0, y1, bottom, top] = line.dataset.scales.split(" ").map(Number);
    const value = (at, low, high, start, end) => low + ((at - start) / (end - start)) * (high - low);
    const along = round(value(near.x, x0, x1, left, right));
    tip.textContent = line.dataset.along.replace("*", along) + ": " + round(value(near.y, y0, y1, bottom, top)) + " " + line.dataset.unit;
    tip.style.left = Math.min(event.clientX + 12, innerWidth - 160) + "px";
    tip.style.top = event.clientY + 12 + "px";
    tip.hidden = false;
  });
})();
