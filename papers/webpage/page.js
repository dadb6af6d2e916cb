"use strict";

/* Charts: drawn when they come into view, the others one by one while the browser has nothing to do, for it prints
   what is drawn and waits for nothing; again in the other colours when the theme changes. */
const themes = { light: {}, dark: { background: "transparent", title: { color: "#ddd" }, style: { "guide-label": { fill: "#ccc" }, "guide-title": { fill: "#ddd" } }, axis: { domainColor: "#888", gridColor: "#444", tickColor: "#888" } } };
const charts = [...document.querySelectorAll(".chart")];
const theme = () => document.documentElement.dataset.theme;

function merged(config, more) {
  const both = { ...config };
  for (const [key, value] of Object.entries(more)) both[key] = typeof value === "object" ? { ...config[key], ...value } : value;
  return both;
}

/* As wide as its place with all that stands beside the plot, which only a drawn chart can tell. Whether it is. */
async function fit(place, view) {
  const over = () => Math.ceil(place.querySelector("svg").getBoundingClientRect().width - place.clientWidth);
  for (let turn = 0; turn < 8; turn += 1) {
    const excess = over();
    if (excess === 0 || (turn > 0 && excess < 0)) break;
    // Words at the end of a bar move with it, so that taking away as much as is too much takes away less.
    await view.width(Math.max(view.width() - (turn > 0 ? Math.ceil(1.3 * excess) : excess), NARROWEST)).runAsync();
  }
  return over() <= 0;
}

/* A legend does not shrink with its chart: where there is little room it has fewer columns. Whether any had more. */
function fold(part, columns) {
  if (part === null || typeof part !== "object") return false;
  const folded = part.legend?.columns > columns;
  if (folded) part.legend.columns = columns;
  return Object.values(part).filter((each) => fold(each, columns)).length > 0 || folded;
}
const NARROWEST = 40;

async function embed(place) {
  const read = JSON.parse(place.nextElementSibling.textContent);
  const spec = theme() === "dark" ? darkened(read) : read;
  spec.config = merged(spec.config ?? {}, themes[theme()]);
  const drawn = async () => fit(place, (await vegaEmbed(place, spec, { renderer: "svg", actions: false, ast: false })).view);
  let fits = await drawn();
  for (const columns of [2, 1]) if (!fits && fold(spec, columns)) fits = await drawn();
}

/* Kept, so that whoever needs all charts also waits for those that are being drawn; one drawing of a chart after the
   other, since two at once would both stand in its place. */
const drawings = new Map();
function draw(place) {
  if (place.dataset.drawn !== theme()) {
    place.dataset.drawn = theme();
    const failed = (error) => { place.textContent = `This chart cannot be drawn: ${error.message}`; console.error(error); };
    drawings.set(place, (drawings.get(place) ?? Promise.resolve()).then(() => embed(place)).catch(failed));
  }
  return drawings.get(place);
}

/* The colours that stand for a chart's own on a dark ground. */
const onDark = JSON.parse(document.getElementById("on-dark").textContent);
function darkened(part) {
  if (Array.isArray(part)) return part.map(darkened);
  if (part !== null && typeof part === "object") return Object.fromEntries(Object.entries(part).map(([key, value]) => [key, darkened(value)]));
  return typeof part === "string" ? onDark[part] ?? part : part;
}

const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) if (isIntersecting) draw(target);
}, { rootMargin: "400px" });
charts.forEach((place) => seen.observe(place));
window.drawAll = () => Promise.all(charts.map(draw));
/* One after the other, with a pause for the reader between them; idle callbacks may never come (a tab behind others). */
async function drawInTurn() {
  const next = charts.find((place) => !place.dataset.drawn);
  if (next) {
    await draw(next);
    setTimeout(drawInTurn, 30);
  }
}
window.addEventListener("load", () => setTimeout(drawInTurn, 300));

/* Light or dark: as the reader's machine is set, until the button is pressed. */
const button = document.getElementById("theme");
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  button.textContent = name === "dark" ? "light" : "dark";
  charts.filter((place) => place.dataset.drawn && place.dataset.drawn !== name).forEach(draw);
}
setTheme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
button.addEventListener("click", () => setTheme(theme() === "dark" ? "light" : "dark"));

/* Printing: all is open. The button waits until every chart is drawn for white paper; the browser's own menu does not
   wait, and gets the charts as they are (style.css gives dark ones their ground). */
let closed = [];
window.addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach((each) => { each.open = true; });
});
window.addEventListener("afterprint", () => closed.forEach((each) => { each.open = false; }));
document.getElementById("print").addEventListener("click", async () => {
  const before = theme();
  setTheme("light");
  await window.drawAll();
  window.addEventListener("afterprint", () => setTheme(before), { once: true });
  window.print();
});

/* Tables: a heading sorts, by numbers with their units where most cells begin with one. */
const units = { kB: 1e3, MB: 1e6, GB: 1e9, kbit: 1e3, mbit: 1e6, gbit: 1e9, us: 1e-6, ms: 1e-3, min: 60, h: 3600 };
function amount(text) {
  const found = /^[^\w+-]{0,3}([+-]?\d[\d,]*\.?\d*(?:e[+-]?\d+)?)(?!\d*\+\d)\s*([A-Za-z]*)/.exec(text.trim());
  return found ? parseFloat(found[1].replaceAll(",", "")) * (units[found[2]] ?? 1) : NaN;
}
function sortBy(table, column, falling) {
  const heading = table.tHead.rows[0].cells[column];
  table.querySelectorAll("th").forEach((each) => each.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
  const rows = [...table.tBodies[0].rows];
  const text = (row) => row.cells[column]?.textContent.trim() ?? "";
  const numbers = rows.map((row) => amount(text(row)));
  const numeric = numbers.filter(Number.isFinite).length > rows.length / 2;
  const key = new Map(rows.map((row, place) => [row, numeric ? numbers[place] : text(row)]));
  const order = (one, other) => {
    const [a, b] = [key.get(one), key.get(other)];
    if (!numeric) return a.localeCompare(b, "en", { numeric: true }) * (falling ? -1 : 1);
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
    return falling ? b - a : a - b;
  };
  table.tBodies[0].append(...rows.sort(order));
}
for (const table of document.querySelectorAll("table")) {
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const turn = () => sortBy(table, column, heading.getAttribute("aria-sort") === "ascending");
    heading.tabIndex = 0;
    heading.addEventListener("click", turn);
    heading.addEventListener("keydown", (event) => { if (event.key === "Enter") turn(); });
  });
}

/* Filters: of the claims by study, verdict and text; of long tables by text. */
const claims = document.querySelector("table.claims");
const filters = document.querySelector("#claims .filters");
function filterClaims() {
  const value = (name) => filters.querySelector(`[data-filter=${name}]`).value;
  const words = value("text").toLowerCase();
  let shown = 0;
  for (const row of claims.tBodies[0].rows) {
    const fits = (!value("study") || row.dataset.study === value("study")) && (!value("state") || row.dataset.state === value("state")) && row.textContent.toLowerCase().includes(words);
    row.hidden = !fits;
    shown += fits;
  }
  filters.querySelector("output").textContent = `${shown} of ${claims.tBodies[0].rows.length}`;
}
filters.addEventListener("input", filterClaims);
/* Where the screen is narrow the claims have no headings to press. */
const sorting = filters.querySelector("[data-sort]");
[...claims.tHead.rows[0].cells].forEach((heading, column) => {
  for (const way of ["ascending", "descending"]) sorting.add(new Option(`${heading.textContent}, ${way}`, `${column} ${way}`));
});
const listed = [...claims.tBodies[0].rows];
sorting.addEventListener("input", () => {
  const [column, way] = sorting.value.split(" ");
  if (way) sortBy(claims, Number(column), way === "descending");
  else claims.tBodies[0].append(...listed);
});
for (const count of document.querySelectorAll(".counts a")) {
  count.addEventListener("click", () => { filters.querySelector("[data-filter=state]").value = count.dataset.state; filterClaims(); });
}
filterClaims();
for (const table of document.querySelectorAll("article table")) {
  if (table.tBodies[0].rows.length < 10) continue;
  const field = Object.assign(document.createElement("input"), { type: "search", placeholder: "filter the rows" });
  field.setAttribute("aria-label", "filter the rows");
  field.addEventListener("input", () => { for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(field.value.toLowerCase()); });
  table.closest(".wide").before(field);
}
