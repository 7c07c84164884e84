// Elements of the page. Texts become text nodes, so no text is ever read as HTML, whoever wrote it.

const SVG = "http://www.w3.org/2000/svg";

/** Return an element with attributes and children; children that are null or false are left out. */
export function h(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** Return an element of SVG. */
export function s(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== false));
  return element;
}

/** Give `parent` these children by changing what differs: focus and selection stay where they are. */
export function show(parent, ...children) {
  const wanted = children.flat(Infinity).filter((child) => child !== null && child !== false);
  const nodes = wanted.map((child) => (child instanceof Node ? child : document.createTextNode(child)));
  sync(parent, nodes);
}

function sync(parent, wanted) {
  wanted.forEach((node, at) => {
    const present = parent.childNodes[at];
    if (present === undefined) parent.append(node);
    else if (present.nodeType !== node.nodeType || present.nodeName !== node.nodeName) present.replaceWith(node);
    else if (node.nodeType === Node.TEXT_NODE) {
      if (present.data !== node.data) present.data = node.data;
    } else {
      syncAttributes(present, node);
      sync(present, [...node.childNodes]);
    }
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

function syncAttributes(present, wanted) {
  for (const { name } of [...present.attributes]) {
    if (!wanted.hasAttribute(name)) present.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (present.getAttribute(name) !== value) present.setAttribute(name, value);
  }
}

const MARKS = { good: "✓", bad: "✕", warn: "!", busy: "…", none: "–" };

/** Return a word with a mark, so that nothing is told by colour alone. */
export function badge(kind, text) {
  return h("span", { class: `badge ${kind}` }, h("span", { class: "mark", "aria-hidden": "true" }, MARKS[kind]), text);
}

/** Return a list of terms and what they are: `[term, value, note]`. */
export function facts(rows) {
  const row = ([term, value, note]) =>
    h("div", {}, h("dt", {}, term), h("dd", {}, value, note ? h("span", { class: "note" }, note) : null));
  return h("dl", { class: "facts" }, rows.filter(Boolean).map(row));
}
