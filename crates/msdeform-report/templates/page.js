// A click on a heading sorts a table, a second click reverses the order. Two lists select one workload or one dtype.
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const heading = button.parentElement;
    const table = heading.closest("table");
    const column = heading.cellIndex;
    const ascending = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of table.querySelectorAll("th")) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const key = (row) => {
      const cell = row.cells[column];
      return cell.dataset.key === undefined ? cell.textContent : Number(cell.dataset.key);
    };
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (typeof x === "number" && typeof y === "number") return x - y;
      if (typeof x === "number") return -1;
      if (typeof y === "number") return 1;
      return x.localeCompare(y);
    };
    const body = table.tBodies[0];
    const rows = [...body.rows].sort((a, b) => (ascending ? order(a, b) : order(b, a)));
    body.append(...rows);
  });
}

const form = document.querySelector("#filter");
// What can be shown alone, and the rows and pictures that it is known of.
const filtered = { workload: new Map(), dtype: new Map() };
const note = (what, value, element) => {
  if (!filtered[what].has(value)) filtered[what].set(value, new Set());
  filtered[what].get(value).add(element);
};
for (const table of document.querySelectorAll("details table")) {
  for (const heading of table.querySelectorAll("th")) {
    const what = heading.textContent.trim();
    if (!(what in filtered)) continue;
    for (const row of table.tBodies[0].rows) note(what, row.cells[heading.cellIndex].textContent, row);
  }
}
for (const figure of document.querySelectorAll("details figure[data-workload]")) {
  for (const what of Object.keys(filtered)) note(what, figure.dataset[what], figure);
}
for (const [what, values] of Object.entries(filtered)) {
  const select = document.createElement("select");
  select.name = what;
  select.append(new Option(`every ${what}`, ""), ...[...values.keys()].map((value) => new Option(value, value)));
  const label = document.createElement("label");
  label.append(select);
  form.append(label);
}
form.addEventListener("change", () => {
  const hidden = new Set();
  for (const [what, values] of Object.entries(filtered)) {
    const wanted = form.elements[what].value;
    for (const [value, elements] of values) {
      if (wanted && value !== wanted) elements.forEach((element) => hidden.add(element));
    }
  }
  for (const values of Object.values(filtered)) {
    for (const elements of values.values()) elements.forEach((element) => { element.hidden = hidden.has(element); });
  }
  for (const details of document.querySelectorAll("details")) {
    const figures = [...details.querySelectorAll("figure[data-workload]")];
    details.hidden = figures.length > 0 && figures.every((figure) => figure.hidden);
  }
});
form.addEventListener("submit", (event) => event.preventDefault());
form.hidden = false;
