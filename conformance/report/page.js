// The filter, the list of all results, the theme and the copy buttons; the page is read without them.
"use strict";
(() => {
  const at = (id) => document.getElementById(id);
  const root = document.documentElement;

  // Theme: the system's, until the button chooses another, which is kept.
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = at("theme");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const name = () => { theme.textContent = isDark() ? "Light theme" : "Dark theme"; };
  try {
    const kept = localStorage.getItem("portable-theme");
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* storage may be refused to a file */ }
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("portable-theme", root.dataset.theme); } catch { /* as above */ }
    name();
  });
  dark.addEventListener("change", name);
  name();
  theme.hidden = false;

  // Copy: a button after each command.
  for (const command of document.querySelectorAll(".command")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy the command");
    button.addEventListener("click", async () => {
      let done = true;
      try {
        await navigator.clipboard.writeText(command.textContent);
      } catch {
        getSelection().selectAllChildren(command);
        done = document.execCommand("copy");
      }
      button.textContent = done ? "Copied" : "Press Ctrl-C";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
    command.after(button);
  }

  // All results: rows are made when the list is opened, a page at a time.
  const PAGE = 200;
  const data = JSON.parse(at("data").textContent);
  const list = at("list"), body = list.querySelector("tbody"), more = at("more");
  const several = data.names.length > 1;
  const texts = data.rows.map((row) => [several ? data.names[row[0]] : "", ...[1, 2, 3, 6].map((i) => data.texts[row[i]])]
    .join(" ").toLowerCase());
  let words = [], found = [], shown = 0;

  const cell = (kind, text, className) => {
    const made = document.createElement(kind);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const showMore = () => {
    for (const row of found.slice(shown, shown + PAGE)) {
      const line = document.createElement("tr");
      const first = cell("th", "");
      first.scope = "row";
      first.append(cell("code", data.texts[row[1]]));
      const device = several ? ` (${data.names[row[0]]})` : "";
      line.append(first, cell("td", data.texts[row[3]]), cell("td", data.texts[row[2]] + device), cell("td", row[4], "num"),
        cell("td", row[5], "num"), cell("td", data.texts[row[6]], "wide"));
      body.append(line);
    }
    shown = Math.min(shown + PAGE, found.length);
    at("list-count").textContent = `${shown} of ${found.length} shown`;
    more.hidden = shown === found.length;
  };
  const showList = () => {
    found = data.rows.filter((_, index) => words.every((word) => texts[index].includes(word)));
    shown = 0;
    body.replaceChildren();
    showMore();
  };
  more.addEventListener("click", showMore);
  list.addEventListener("toggle", () => { if (list.open) showList(); });
  list.querySelector("summary").textContent = `Show the list of ${data.rows.length.toLocaleString("en")} results`;
  list.hidden = false;

  // Filter: rows and failures that hold every word; what a cell has folded away does not count.
  const wordsOf = (node) => node.cells
    ? [...node.cells].filter((each) => !each.querySelector("details")).map((each) => each.textContent).join(" ")
    : node.textContent;
  const entries = [...document.querySelectorAll(".rows tbody tr, .failure")]
    .map((node) => ({ node, text: wordsOf(node).toLowerCase() }));
  const groups = [...document.querySelectorAll(".rows tbody")];
  const boxes = [...document.querySelectorAll(".rows")];
  const filter = at("filter");
  const apply = () => {
    words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const { node, text } of entries) {
      node.hidden = !words.every((word) => text.includes(word));
      count += !node.hidden;
    }
    for (const group of groups) group.hidden = !group.querySelector("tr:not([hidden])");
    for (const box of boxes) box.classList.toggle("empty", !box.querySelector("tbody tr:not([hidden])"));
    at("count").textContent = words.length ? `${count} of ${entries.length} rows` : "";
    if (list.open) showList();
  };
  const fromAddress = () => {
    const match = /^#filter=(.*)$/.exec(location.hash);
    if (!match) return;
    try { filter.value = decodeURIComponent(match[1]); } catch { filter.value = match[1]; }
    apply();
  };
  let timer = 0;
  filter.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      apply();
      const hash = filter.value ? `#filter=${encodeURIComponent(filter.value)}` : location.pathname;
      try { history.replaceState(null, "", hash); } catch { /* refused to some embedded pages */ }
    }, 80);
  });
  addEventListener("hashchange", fromAddress);
  at("search").hidden = false;
  at("search").addEventListener("submit", (event) => event.preventDefault());
  fromAddress();
})();
