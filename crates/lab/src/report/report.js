"use strict";
(function () {
  var root = document.documentElement;
  var names = ["system", "light", "dark"];
  var button = document.getElementById("theme");
  function theme(name) {
    if (name === "system") { root.removeAttribute("data-theme"); } else { root.setAttribute("data-theme", name); }
    button.textContent = "Theme: " + name;
    // A browser may forbid storage for local files; the choice is then for this visit.
    try { localStorage.setItem("butterfs-lab-theme", name); } catch (error) { return; }
  }
  var kept = null;
  try { kept = localStorage.getItem("butterfs-lab-theme"); } catch (error) { kept = null; }
  theme(names.indexOf(kept) >= 0 ? kept : "system");
  button.addEventListener("click", function () {
    var now = root.getAttribute("data-theme") || "system";
    theme(names[(names.indexOf(now) + 1) % names.length]);
  });
  var durable = document.getElementById("durable");
  durable.addEventListener("change", function () { root.classList.toggle("hide-unsafe", durable.checked); });

  function value(row, column) {
    var cell = row.cells[column];
    var number = cell.getAttribute("data-value");
    return number === null ? cell.textContent.trim().toLowerCase() : number === "" ? null : Number(number);
  }
  function sort(table, head, column) {
    var down = head.getAttribute("aria-sort") === "ascending";
    table.querySelectorAll("th[aria-sort]").forEach(function (other) { other.setAttribute("aria-sort", "none"); });
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    var body = table.tBodies[0];
    var rows = Array.prototype.slice.call(body.rows);
    rows.sort(function (a, b) {
      var x = value(a, column), y = value(b, column);
      // What has no figure stays at the end, whichever way.
      if (x === null || y === null) { return (x === null) - (y === null); }
      var order = x < y ? -1 : x > y ? 1 : 0;
      return down ? -order : order;
    });
    rows.forEach(function (row) { body.appendChild(row); });
  }
  document.querySelectorAll("table.sortable").forEach(function (table) {
    Array.prototype.forEach.call(table.tHead.rows[0].cells, function (head, column) {
      var inner = document.createElement("button");
      inner.type = "button";
      while (head.firstChild) { inner.appendChild(head.firstChild); }
      head.appendChild(inner);
      head.setAttribute("aria-sort", "none");
      inner.addEventListener("click", function () { sort(table, head, column); });
    });
    var label = document.createElement("label");
    label.className = "filter";
    label.textContent = "Filter: ";
    var input = document.createElement("input");
    input.type = "search";
    label.appendChild(input);
    var shown = document.createElement("span");
    shown.setAttribute("role", "status");
    shown.className = "soft";
    label.appendChild(shown);
    table.closest(".scroll").before(label);
    input.addEventListener("input", function () {
      var words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      var count = 0;
      Array.prototype.forEach.call(table.tBodies[0].rows, function (row) {
        var text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.indexOf(word) >= 0; });
        if (!row.hidden) { count += 1; }
      });
      shown.textContent = words.length ? " " + count + " of " + table.tBodies[0].rows.length : "";
    });
  });
})();
