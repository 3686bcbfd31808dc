// The page of an audit: tables that can be sorted, and a search in the findings of the tasks.

const COLLATOR = new Intl.Collator("en", { numeric: true });
const valueOf = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent;

function sort(table, column) {
  const heads = [...table.tHead.rows[0].cells];
  const isNumber = heads[column].className === "number";
  const before = heads[column].ariaSort;
  const descending = before ? before === "ascending" : isNumber; // The largest number first.
  const rows = [...table.tBodies[0].rows].sort((a, b) => COLLATOR.compare(valueOf(a, column), valueOf(b, column)));
  table.tBodies[0].append(...(descending ? rows.reverse() : rows));
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[column].ariaSort = descending ? "descending" : "ascending";
}

function makeSortable(table) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: head.textContent, title: `sort by ${head.textContent}` });
    button.addEventListener("click", () => sort(table, column));
    head.replaceChildren(button);
  });
}

const input = document.querySelector("input.search");
const tasks = [...document.querySelectorAll("details.task")];

function find() {
  const wanted = input.value.toLowerCase();
  for (const task of tasks) task.hidden = !task.textContent.toLowerCase().includes(wanted);
  document.querySelector("[role=status]").textContent = `${tasks.filter((task) => !task.hidden).length} of ${tasks.length} tasks with findings`;
}

openTheme();
document.querySelectorAll("table.sortable").forEach(makeSortable);
input.addEventListener("input", find);
for (const button of document.querySelectorAll("button.kind")) button.addEventListener("click", () => { input.value = button.textContent; find(); });
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target === input) return;
  if (event.key === "d") switchTheme();
  if (event.key === "/") { event.preventDefault(); input.focus(); }
});
find();
