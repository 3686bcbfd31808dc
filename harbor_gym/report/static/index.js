// The list of runs: read again while it is open, and several that are chosen are opened on one page.

const POLL_MS = 2000;
const MOST = Number(document.querySelector("tbody").dataset.most);

function chosen() { return [...document.querySelectorAll("tbody input:checked")].map((box) => box.value); }

function compare() {
  const link = document.getElementById("compare");
  const names = chosen();
  link.hidden = names.length < 2;
  link.href = `view/${names.map(encodeURIComponent).join("%7C")}/`;
  for (const box of document.querySelectorAll("tbody input")) box.disabled = names.length >= MOST && !box.checked;
}

async function refresh() {
  try {
    const page = new DOMParser().parseFromString(await (await fetch("./")).text(), "text/html");
    const before = document.querySelector("tbody"), after = page.querySelector("tbody");
    if (before.dataset.state !== after.dataset.state) {
      const kept = chosen();
      before.replaceWith(document.adoptNode(after));
      for (const box of document.querySelectorAll("tbody input")) box.checked = kept.includes(box.value);
      compare();
    }
    document.body.classList.toggle("lost", false);
  } catch { document.body.classList.toggle("lost", true); }
  setTimeout(refresh, POLL_MS);
}

openTheme();
document.addEventListener("change", compare);
document.addEventListener("keydown", (event) => { if (event.key === "d" && !event.ctrlKey && !event.metaKey && !event.altKey) switchTheme(); });
compare();
setTimeout(refresh, POLL_MS);
