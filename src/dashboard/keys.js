// The keyboard: `/` leads to the filter, the skip link to the content.

export function keys() {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, select, textarea, [contenteditable]");
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const filter = document.querySelector("main [data-filter]");
    if (!filter) return;
    event.preventDefault();
    filter.focus();
    filter.select?.();
  });
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  });
}
