// Small helpers. Every string is inserted as text, never as HTML: names come from clients and configurations.

export const byId = (id) => document.getElementById(id);

export function element(tag, className = "", ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

export function titled(made, title) {
  made.title = title;
  return made;
}

// Keep `parent`'s children in step with `items`: existing rows are updated in place, so focus and hover texts survive.
export function keepInStep(parent, items, keyOf, make, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = known.get(key);
    if (child) {
      known.delete(key);
    } else {
      child = make(item);
      child.dataset.key = key;
    }
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const gone of known.values()) gone.remove();
}

export function tableRow(labels, className = "") {
  const row = element("tr", className);
  row.setAttribute("role", "row");
  for (const label of labels) {
    const cell = element("td");
    cell.setAttribute("role", "cell");
    if (label) cell.dataset.label = label;
    row.append(cell);
  }
  return row;
}

// Change a cell only when what it shows changes.
export function fill(cell, title, ...children) {
  if (cell.title !== title) cell.title = title;
  const fresh = element("div", "", ...children);
  const same = fresh.childNodes.length === cell.childNodes.length
    && [...fresh.childNodes].every((node, index) => node.isEqualNode(cell.childNodes[index]));
  if (!same) cell.replaceChildren(...fresh.childNodes);
}

// Rows are {key, className, title, cells: [nodes or strings]}.
export function showTable(id, rows) {
  const labels = [...byId(id).tHead.rows[0].cells].map((head) => head.textContent);
  keepInStep(byId(id).tBodies[0], rows, (row) => row.key, () => tableRow(labels),
    (made, { className = "", title = "", cells }) => {
      made.className = className;
      cells.forEach((cell, index) => fill(made.cells[index], title, ...(Array.isArray(cell) ? cell : [cell])));
    });
}

// A bar of parts [className, value] on a scale from 0 to `most`.
export function bar(most, ...parts) {
  const made = element("div", "bar");
  made.setAttribute("aria-hidden", "true");
  let left = 100;
  for (const [className, value] of parts) {
    const percent = most > 0 ? Math.min(100 * value / most, left) : 0;
    left -= percent;
    if (percent < 0.2) continue;
    const part = element("span", className);
    part.style.width = `${percent.toFixed(2)}%`;
    made.append(part);
  }
  return made;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => whole.format(value);
export const compact = (value) => (value < 10_000 ? whole.format(value) : short.format(value));
export const percent = (share) => `${whole.format(100 * share)} %`;
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

export function significant(value) {
  if (value === 0) return "0";
  return value >= 100 ? whole.format(value) : String(Number(value.toPrecision(2)));
}

export function milliseconds(value) {
  if (value === null || value === undefined) return "unknown";
  if (value < 10_000) return `${significant(value)} ms`;
  return value < 6e5 ? `${significant(value / 1e3)} s` : `${compact(value / 6e4)} min`;
}

export function duration(seconds) {
  if (seconds < 60) return `${Math.max(0, Math.floor(seconds))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return plural(Math.floor(seconds / 86400), "day");
}

// From the least to the most of `values`, as one where they look alike.
export function range(values, shown, unknown = "") {
  if (!values.length) return unknown;
  const [least, most] = [shown(Math.min(...values)), shown(Math.max(...values))];
  return least === most ? least : `${least} – ${most}`;
}
