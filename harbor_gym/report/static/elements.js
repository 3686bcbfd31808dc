// Building the page. Text reaches it through textContent only.

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  for (const child of children) if (child !== null && child !== undefined) made.append(child instanceof Node ? child : String(child));
  return made;
}

function button(text, title, act) {
  const made = Object.assign(element("button", "", text), { type: "button", title });
  made.addEventListener("click", act);
  return made;
}

function select(label, choices, act) {
  const made = element("select");
  made.setAttribute("aria-label", label);
  for (const [value, text] of choices) made.append(Object.assign(element("option", "", text), { value }));
  made.addEventListener("change", act);
  return made;
}

const figure = (value, digits) => (typeof value === "number" ? value.toFixed(digits) : "–");

function outcome(episode) {
  if (episode.error) return "error";
  return episode.reward > 0 ? "good" : "bad";
}
