/* What a page of the site shows: the faults of its charts and tables, as a list of sentences. */
window.faults = async (width) => {
  const found = [];
  const root = document.documentElement;
  if (root.scrollWidth > width) found.push(`the page is ${root.scrollWidth} pixels wide`);
  let bottom = -Infinity;
  for (const part of document.querySelector(".md-content__inner").children) {
    const box = part.getBoundingClientRect();
    if (box.height === 0 || getComputedStyle(part).float !== "none") continue;
    if (box.top < bottom - 1) found.push(`overlaps what is above it: ${part.textContent.trim().slice(0, 40)}`);
    bottom = box.bottom;
  }
  for (const chart of document.querySelectorAll(".chart")) found.push(...ofChart(chart));
  // How a table sorts does not depend on the width, and takes most of the time.
  for (const table of width > 1000 ? document.querySelectorAll("table.rows") : []) if (!(await sorts(table))) found.push(`does not sort: ${table.textContent.trim().slice(0, 40)}`);
  return found;
};

function ofChart(chart) {
  const name = chart.getAttribute("aria-label"), svg = chart.querySelector("svg");
  const marks = [...chart.querySelectorAll(["symbol", "rect", "line", "rule", "area"].map((mark) => `.mark-${mark} path, .mark-${mark} line`).join(", "))];
  if (!marks.some((mark) => { const box = mark.getBoundingClientRect(); return box.width + box.height > 0; })) return [`${name}: no mark is drawn`];
  const found = [], edge = svg.getBoundingClientRect();
  if (edge.width > chart.getBoundingClientRect().width + 1) found.push(`${name}: is broader than its place`);
  const words = [...svg.querySelectorAll("text")].filter((each) => each.textContent.trim() && getComputedStyle(each).opacity !== "0");
  const boxes = words.map((each) => [each.textContent, each.getBoundingClientRect()]).filter(([, box]) => box.width > 0);
  boxes.forEach(([one, a], place) => {
    if (a.right > edge.right + 1 || a.left < edge.left - 1) found.push(`${name}: cut off: ${one}`);
    for (const [other, b] of boxes.slice(place + 1)) {
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left), down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 2 && down > 3 && one !== other) found.push(`${name}: ${one} lies over ${other}`);
    }
  });
  return found;
}

/* Whether the cells of each column ascend after one press of its heading and descend after another: by plain numbers
   where all cells are that, else by words; what is neither is not judged. */
async function sorts(table) {
  for (const [column, heading] of [...table.tHead.rows[0].cells].entries()) {
    const cells = () => [...table.tBodies[0].rows].map((row) => row.cells[column].textContent.trim());
    const pressed = async () => { heading.click(); await new Promise((done) => setTimeout(done)); return cells(); };
    const before = [...cells()].sort().join("|"), rising = await pressed(), falling = await pressed();
    if ([...rising].sort().join("|") !== before || [...falling].sort().join("|") !== before) return false;
    const numbers = rising.every((cell) => /^-?[\d,.]+$/.test(cell)), words = rising.every((cell) => /^[a-z_ ]+$/.test(cell));
    if (!numbers && !words) continue;
    const order = numbers ? (a, b) => parseFloat(a.replaceAll(",", "")) - parseFloat(b.replaceAll(",", "")) : (a, b) => (a < b ? -1 : Number(a > b));
    const ascends = (list) => list.every((cell, place) => place === 0 || order(list[place - 1], cell) <= 0);
    if (!ascends(rising) || !ascends([...falling].reverse())) return false;
  }
  return true;
}
