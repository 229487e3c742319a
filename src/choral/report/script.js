"use strict";
(function () {
  function valueOf(row, column) {
    const cell = row.children[column];
    const held = cell.dataset.value;
    if (held === undefined) return null;
    const number = Number(held);
    return held !== "" && !Number.isNaN(number) ? number : held;
  }

  function sortBy(table, heading, column) {
    const up = heading.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th[aria-sort]").forEach((th) => th.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", up ? "descending" : "ascending");
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    rows.sort((a, b) => {
      const x = valueOf(a, column), y = valueOf(b, column);
      if (x === null || y === null) return (x === null) - (y === null);
      const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
      return up ? -order : order;
    });
    body.append(...rows);
  }

  document.querySelectorAll("table.sortable").forEach((table) => {
    Array.from(table.tHead.rows[0].cells).forEach((heading, column) => {
      heading.querySelector("button").addEventListener("click", () => sortBy(table, heading, column));
    });
  });

  const chips = Array.from(document.querySelectorAll("nav.legend .chip"));
  function focusOn(method) {
    document.body.classList.toggle("focus", method !== null);
    document.querySelectorAll("[data-method]").forEach((part) => {
      const on = method !== null && part.dataset.method === method;
      part.classList.toggle("on", on);
      if (on && part.classList.contains("series")) part.parentNode.append(part);
    });
    chips.forEach((chip) => chip.setAttribute("aria-pressed", String(chip.dataset.method === method)));
  }
  chips.forEach((chip) => {
    chip.addEventListener("click", () => {
      focusOn(chip.getAttribute("aria-pressed") === "true" ? null : chip.dataset.method);
    });
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") focusOn(null);
  });

  document.querySelectorAll(".tabs").forEach((tabs) => {
    const buttons = Array.from(tabs.querySelectorAll("button"));
    buttons.forEach((button) => {
      button.addEventListener("click", () => {
        buttons.forEach((other) => {
          const chosen = other === button;
          other.setAttribute("aria-pressed", String(chosen));
          document.getElementById(other.dataset.shows).hidden = !chosen;
        });
      });
    });
  });
})();
