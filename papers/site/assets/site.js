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

/* Tables: a heading sorts, by numbers with their units where most cells of the column begin with one. */
const units = { kB: 1e3, MB: 1e6, GB: 1e9, kbit: 1e3, mbit: 1e6, gbit: 1e9, us: 1e-6, ms: 1e-3, min: 60, h: 3600 };
function amount(text) {
  const found = /^[^\w+-]{0,3}([+-]?\d[\d,]*\.?\d*(?:e[+-]?\d+)?)(?!\d*\+\d)\s*([A-Za-z]*)/.exec(text.trim());
  return found ? parseFloat(found[1].replaceAll(",", "")) * (units[found[2]] ?? 1) : NaN;
}

function byAmounts(table) {
  [...table.tHead.rows[0].cells].forEach((_, column) => {
    const cells = [...table.tBodies[0].rows].map((row) => row.cells[column]);
    const amounts = cells.map((cell) => amount(cell.textContent));
    if (amounts.filter(Number.isFinite).length > cells.length / 2) {
      cells.forEach((cell, row) => { cell.dataset.order = Number.isFinite(amounts[row]) ? amounts[row] : ""; });
    }
  });
}

/* A list of all values of a column, of which one can be chosen. */
function choice(table, name) {
  const column = table.column((_, __, heading) => heading.textContent.trim() === name);
  const values = [...new Set(column.nodes().toArray().map((cell) => cell.textContent.trim()))];
  const list = Object.assign(document.createElement("select"), { ariaLabel: name });
  list.append(new Option(`${name}: all`, ""), ...values.map((value) => new Option(value)));
  list.addEventListener("input", () => column.search(list.value, { exact: list.value !== "" }).draw());
  return list;
}

const LONG = 10;
for (const found of document.querySelectorAll(".md-content table:not(.highlighttable)")) {
  const rows = found.tBodies[0]?.rows.length ?? 0;
  if (rows < 2) continue;
  byAmounts(found);
  const claims = found.closest(".claims");
  const labels = [...found.tHead.rows[0].cells].map((cell) => cell.textContent);
  if (claims) for (const row of found.tBodies[0].rows) [...row.cells].forEach((cell, column) => { cell.dataset.label = labels[column]; });
  const layout = { topStart: null, topEnd: null, bottomStart: null, bottomEnd: null };
  if (rows >= LONG) layout.topStart = ["search", ...(claims ? ["info"] : [])];
  const table = new DataTable(found, {
    paging: false, order: [], autoWidth: false, layout,
    language: { search: "", searchPlaceholder: "filter the rows", info: "_TOTAL_ of _MAX_", infoEmpty: "0 of _MAX_", infoFiltered: "" },
  });
  // DataTables marks the event so that Material's listener for copied code, which hears every click, would fail.
  table.table().header().addEventListener("click", (event) => event.stopPropagation());
  if (claims) table.table().container().querySelector(".dt-search").append(...["study", "of", "verdict"].map((name) => choice(table, name)));
}
