/* Goes through the page in an iframe as a reader would, and leaves what it saw, as JSON, in the document. */
const frame = document.querySelector("iframe");
const settled = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

const name = (chart) => chart.closest("figure").id;

/* Pairs of words that lie over each other, of those that are seen. */
function overlaps(svg, page) {
  const words = [...svg.querySelectorAll("text")].filter((each) => each.textContent.trim() && page.getComputedStyle(each).opacity !== "0");
  const boxes = words.map((each) => [each.textContent, each.getBoundingClientRect()]).filter(([, box]) => box.width > 0);
  const found = [];
  boxes.forEach(([one, a], place) => boxes.slice(place + 1).forEach(([other, b]) => {
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 2 && down > 3 && one !== other) found.push(`${one} / ${other}`);
  }));
  return found;
}

/* Words that go beyond the edge of their chart. */
function cut(svg) {
  const edge = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter((each) => { const box = each.getBoundingClientRect(); return box.width > 0 && (box.right > edge.right + 1 || box.left < edge.left - 1); }).map((each) => each.textContent);
}

/* Whether the cells of each column ascend after one press of its heading and descend after another: by plain numbers
   where all cells are that, else by words; what is neither is not judged. */
function sorts(table) {
  return [...table.tHead.rows[0].cells].every((heading, column) => {
    const cells = () => [...table.tBodies[0].rows].map((row) => row.cells[column]?.textContent.trim() ?? "");
    const before = [...cells()].sort().join("|");
    heading.click();
    const rising = cells();
    heading.click();
    const falling = cells();
    if ([...rising].sort().join("|") !== before || [...falling].sort().join("|") !== before) return false;
    const numbers = rising.every((cell) => /^-?[\d,.]+$/.test(cell));
    const words = rising.every((cell) => /^[A-Za-z_ ]+$/.test(cell));
    if (!numbers && !words) return true;
    const order = numbers ? (a, b) => parseFloat(a.replaceAll(",", "")) - parseFloat(b.replaceAll(",", "")) : (a, b) => a.localeCompare(b, "en", { numeric: true });
    const ascends = (list) => list.every((cell, place) => place === 0 || order(list[place - 1], cell) <= 0);
    return ascends(rising) && ascends([...falling].reverse());
  });
}

const MARKS = ["symbol path", "rect path", "line path", "rule line", "area path", "point path"].map((mark) => `svg .mark-${mark}`).join(", ");
const empty = (charts) => charts.filter((each) => !each.querySelector(MARKS)).map(name);

/* Charts of which no mark answers to the pointer with a value. */
function mute(charts, page) {
  const answers = (chart) => [...chart.querySelectorAll(MARKS)].some((mark) => /\d/.test(answerOf(mark, page)));
  return charts.filter((chart) => !answers(chart)).map(name);
}

function answerOf(mark, page) {
  const { left, top, width, height } = mark.getBoundingClientRect();
  const where = { bubbles: true, clientX: left + width / 2, clientY: top + height / 2 };
  for (const kind of ["over", "move"]) {
    mark.dispatchEvent(new page.PointerEvent(`pointer${kind}`, where));
    mark.dispatchEvent(new page.MouseEvent(`mouse${kind}`, where));
  }
  const said = page.document.querySelector("#vg-tooltip-element.visible")?.textContent.trim() ?? "";
  mark.dispatchEvent(new page.PointerEvent("pointerout", where));
  mark.dispatchEvent(new page.MouseEvent("mouseout", where));
  return said;
}

/* What the page is when the browser is told to print, by the button, from a dark page. */
async function printed(charts, page) {
  const body = page.document;
  page.setTheme("dark");
  const seen = new Promise((done) => { page.print = () => {
    page.dispatchEvent(new page.Event("beforeprint"));
    done({
      empty: empty(charts), closed: body.querySelectorAll("details:not([open])").length,
      dark: charts.filter((each) => each.dataset.drawn !== "light").length,
    });
    page.dispatchEvent(new page.Event("afterprint"));
  }; });
  body.getElementById("print").click();
  const found = await seen;
  found.restored = body.documentElement.dataset.theme === "dark" && body.querySelector("details:not([open])") !== null;
  page.setTheme("light");
  await page.drawAll();
  return found;
}

/* Whether the control of narrow screens sorts the claims, both ways and back; and which of it and the headings is seen. */
function sortedBy(body) {
  const control = body.querySelector("[data-sort]");
  const cells = () => [...body.querySelectorAll("table.claims tbody tr")].map((row) => row.cells[1].textContent.trim());
  const by = (value) => { control.value = value; control.dispatchEvent(new Event("input", { bubbles: true })); return cells(); };
  const listed = cells(), rising = by("1 ascending"), falling = by("1 descending");
  const ascends = (list) => list.every((cell, place) => place === 0 || list[place - 1].localeCompare(cell, "en", { numeric: true }) <= 0);
  return {
    control: control.offsetParent !== null, headings: body.querySelector("table.claims thead").offsetParent !== null,
    sorts: ascends(rising) && ascends([...falling].reverse()) && by("").join() === listed.join(),
  };
}

async function look() {
  const page = frame.contentWindow, body = page.document;
  const charts = [...body.querySelectorAll(".chart")];
  for (let turn = 0; turn < 200 && empty(charts).length; turn += 1) await settled(100);
  const unasked = empty(charts);  // nobody scrolled there: the browser's own menu prints these as they are
  await page.drawAll();
  await settled(200);
  const seen = {
    errors: page.seenErrors,
    charts: charts.length,
    unasked,
    empty: empty(charts),
    mute: mute(charts, page),
    sorted: sortedBy(body),
    printed: await printed(charts, page),
    overlaps: charts.flatMap((each) => (each.querySelector("svg") ? overlaps(each.querySelector("svg"), page).map((pair) => `${name(each)}: ${pair}`) : [])),
    cut: charts.flatMap((each) => (each.querySelector("svg") ? cut(each.querySelector("svg")).map((word) => `${name(each)}: ${word}`) : [])),
    clipped: charts.filter((each) => each.querySelector("svg")?.getBoundingClientRect().width > each.getBoundingClientRect().width + 1).map((each) => name(each)),
    width: body.documentElement.scrollWidth,
    tables: body.querySelectorAll("main table").length,
    unsorted: [...body.querySelectorAll("main table")].filter((table) => !sorts(table)).map((table) => table.textContent.slice(0, 60)),
  };
  const filters = body.querySelectorAll("[data-filter]");
  filters[1].value = filters[1].options[1].value;
  filters[1].dispatchEvent(new page.Event("input", { bubbles: true }));
  const rows = [...body.querySelectorAll("table.claims tbody tr")].filter((row) => !row.hidden);
  seen.filtered = rows.every((row) => row.dataset.state === filters[1].value) ? rows.length : -1;
  body.getElementById("theme").click();
  await settled(300);
  seen.redrawn = charts.filter((each) => each.dataset.drawn === body.documentElement.dataset.theme).length;
  return seen;
}

frame.addEventListener("load", () => look().catch((error) => ({ failed: `${error} ${error.stack}` })).then((seen) => {
  document.getElementById("seen").textContent = JSON.stringify(seen);
}));
