// What the theme leaves out for those who use a keyboard or a screen reader.
document.addEventListener("DOMContentLoaded", () => {
  const set = (selector, name, value) =>
    document.querySelectorAll(selector).forEach((found) => found.setAttribute(name, value));
  // What scrolls can be reached by Tab, and then scrolled by the arrow keys.
  set(".content pre, .content .table-wrapper, .content p:has(> img)", "tabindex", "0");
  set(".sidebar-tree .caption[role=heading]", "aria-level", "2");
  set(".sidebar-drawer", "aria-label", "Pages");
  set(".toc-drawer", "aria-label", "On this page");
});
