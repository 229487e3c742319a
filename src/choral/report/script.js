"use strict";
(function () {
  const valueOf = (row, column) => {
    const held = row.children[column].dataset.value;
    if (held === undefined) return null;
    return held !== "" && !Number.isNaN(Number(held)) ? Number(held) : held;
  };
  document.querySelectorAll("table.sortable").forEach((table) => {
    Array.from(table.tHead.rows[0].cells).forEach((heading, column) => {
      heading.querySelector("button").addEventListener("click", () => {
        const up = heading.getAttribute("aria-sort") === "ascending";
        table.querySelectorAll("th[aria-sort]").forEach((th) => th.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", up ? "descending" : "ascending");
        const rows = Array.from(table.tBodies[0].rows).sort((a, b) => {
          const x = valueOf(a, column), y = valueOf(b, column);
          if (x === null || y === null) return (x === null) - (y === null);
          const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
          return up ? -order : order;
        });
        table.tBodies[0].append(...rows);
      });
    });
  });
  const chips = Array.from(document.querySelectorAll("nav .chip"));
  const focusOn = (method) => {
    document.body.classList.toggle("focus", method !== null);
    document.querySelectorAll("[data-method]").forEach((part) => {
      part.classList.toggle("on", method !== null && part.dataset.method === method);
    });
    chips.forEach((chip) => chip.setAttribute("aria-pressed", String(chip.dataset.method === method)));
  };
  chips.forEach((chip) => chip.addEventListener("click", () => {
    focusOn(chip.getAttribute("aria-pressed") === "true" ? null : chip.dataset.method);
  }));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") focusOn(null); });
})();
