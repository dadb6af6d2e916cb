"use strict";

/* Charts. They have the size for which their labels were placed, and are as wide as the page where that has less room. */
const here = document.currentScript.src;
const dark = () => document.body.dataset.mdColorScheme === "slate";
const onDarkGround = { background: "transparent", style: { "guide-label": { fill: "#ccc" }, "guide-title": { fill: "#ddd" }, "group-title": { fill: "#ddd" }, "group-subtitle": { fill: "#bbb" } }, axis: { domainColor: "#888", gridColor: "#444", tickColor: "#888" } };

async function draw(place) {
  const text = place.nextElementSibling.textContent;
  const spec = JSON.parse(dark() ? text.replace(/#[0-9A-Fa-f]{6}/g, (colour) => onDark[colour] ?? colour) : text);
  const options = { renderer: "svg", actions: false, ast: false, logLevel: 1, config: dark() ? onDarkGround : {} };
  await vegaEmbed(place, spec, options);
  if (place.querySelector("svg").getBoundingClientRect().width > place.clientWidth) {
    await vegaEmbed(place, { ...spec, width: place.clientWidth, autosize: { type: "fit", contains: "padding" } }, options);
  }
}

const charts = [...document.querySelectorAll(".chart")];
let drawn = Promise.resolve();
function drawAll() {
  for (const place of charts) drawn = drawn.then(() => draw(place)).catch((error) => console.error(error));
  return drawn.then(() => { document.body.dataset.drawn = document.body.dataset.mdColorScheme; });
}
if (charts.length > 0) {
  const vega = Object.assign(document.createElement("script"), { src: new URL("vega.js", here), onload: drawAll });
  document.head.append(vega);
  new MutationObserver(() => window.vegaEmbed && drawAll()).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
}

/* Tables. Rows are compared by numbers with their units where most cells of the column begin with one, else by words. */
const units = { kB: 1e3, MB: 1e6, GB: 1e9, kbit: 1e3, mbit: 1e6, gbit: 1e9, us: 1e-6, ms: 1e-3, min: 60, h: 3600 };
function amount(text) {
  const found = /^[^\w+-]{0,3}([+-]?\d[\d,]*\.?\d*(?:e[+-]?\d+)?)(?!\d*\+\d)\s*([A-Za-z]*)/.exec(text);
  return found ? parseFloat(found[1].replaceAll(",", "")) * (units[found[2]] ?? 1) : -Infinity;
}

function comparable(texts) {
  const amounts = texts.map(amount);
  return amounts.filter(Number.isFinite).length > texts.length / 2 ? amounts : texts.map((text) => text.toLowerCase());
}

const make = (name, properties) => Object.assign(document.createElement(name), properties);
const LONG = 10;

class Table {
  constructor(table) {
    this.body = table.tBodies[0];
    this.rows = [...this.body.rows];
    this.texts = this.rows.map((row) => [...row.cells].map((cell) => cell.textContent.trim()));
    this.headings = [...table.tHead.rows[0].cells];
    this.order = [...this.rows.keys()];
    this.filters = [];
    this.place = make("div", { className: "scroll" });
    table.replaceWith(this.place);
    this.place.append(table);
    table.classList.add("rows");
    this.headings.forEach((heading, column) => {
      heading.tabIndex = 0;
      heading.addEventListener("click", () => this.sort(column));
      heading.addEventListener("keydown", (event) => event.key === "Enter" && this.sort(column));
    });
  }

  /* By a column: upwards, then downwards, then as the table was. */
  sort(column) {
    const now = this.headings[column].getAttribute("aria-sort");
    const next = now === "ascending" ? "descending" : now === "descending" ? null : "ascending";
    for (const heading of this.headings) heading.removeAttribute("aria-sort");
    this.order = [...this.rows.keys()];
    if (next) {
      const values = comparable(this.texts.map((row) => row[column])), sign = next === "ascending" ? 1 : -1;
      this.order.sort((a, b) => sign * (values[a] < values[b] ? -1 : Number(values[a] > values[b])));
      this.headings[column].setAttribute("aria-sort", next);
    }
    this.show();
  }

  show() {
    const shown = this.order.filter((row) => this.filters.every((fits) => fits(this.texts[row])));
    this.body.replaceChildren(...shown.map((row) => this.rows[row]));
    if (this.info) this.info.textContent = `${shown.length} of ${this.rows.length}`;
  }

  addFilter(control, fits) {
    this.filters.push((texts) => control.value === "" || fits(texts, control.value));
    control.addEventListener("input", () => this.show());
    return control;
  }

  /* Rows that have every word. */
  search() {
    const field = make("input", { type: "search", placeholder: "filter the rows", ariaLabel: "filter the rows" });
    const words = (value) => value.toLowerCase().split(/\s+/);
    return this.addFilter(field, (texts, value) => words(value).every((word) => texts.join(" ").toLowerCase().includes(word)));
  }

  /* Rows with one of a column's values. */
  choice(name) {
    const column = this.headings.findIndex((heading) => heading.textContent.trim() === name);
    const list = make("select", { ariaLabel: name });
    const values = new Set(this.texts.map((row) => row[column]));
    list.append(new Option(`${name}: all`, ""), ...[...values].map((value) => new Option(value, value)));
    return this.addFilter(list, (texts, value) => texts[column] === value);
  }
}

for (const found of document.querySelectorAll(".md-content table:not(.highlighttable)")) {
  const rows = found.tBodies[0]?.rows.length ?? 0, claims = found.closest(".claims");
  if (rows < 2) continue;
  const table = new Table(found);
  if (rows < LONG) continue;
  const controls = make("div", { className: "filters" });
  controls.append(table.search());
  table.place.before(controls);
  if (!claims) continue;
  controls.append(...["study", "of", "verdict"].map((name) => table.choice(name)));
  table.info = make("div", { className: "info", ariaLive: "polite" });
  controls.after(table.info);
  table.rows.forEach((row) => [...row.cells].forEach((cell, column) => { cell.dataset.label = table.headings[column].textContent; }));
  table.show();
}
