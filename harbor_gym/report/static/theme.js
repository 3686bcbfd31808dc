// Dark or light, as the reader chose it last.

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "light" : "dark";
}

function firstTheme() {
  try { if (localStorage.getItem("harbor-gym-theme")) return localStorage.getItem("harbor-gym-theme"); } catch { /* likewise */ }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

function switchTheme() {
  setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  try { localStorage.setItem("harbor-gym-theme", document.documentElement.dataset.theme); } catch { /* a page from a file may not */ }
}

function openTheme() {
  setTheme(firstTheme());
  document.getElementById("theme").addEventListener("click", switchTheme);
}
