// A click on a heading sorts its table by that column; another click turns it round.
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
