// What the theme leaves out for readers of screens and keyboards.
window.addEventListener("load", () => requestAnimationFrame(() => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .highlight code")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
  }
}));
