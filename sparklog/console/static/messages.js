// Copying a value, and a live tail that stays bounded. Pages work without it.
"use strict";
for (const button of document.querySelectorAll("button[data-copy]")) {
  if (!navigator.clipboard) break;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.querySelector(button.dataset.copy).textContent);
    button.textContent = "Copied";
  });
}
// A list of new records keeps the newest, whichever end they come in at.
document.addEventListener("htmx:sseMessage", (event) => {
  const list = event.target;
  const most = Number(list.dataset.most);
  if (!most) return;
  const isNewestFirst = list.getAttribute("hx-swap") === "afterbegin";
  while (list.children.length > most) (isNewestFirst ? list.lastElementChild : list.firstElementChild).remove();
});
const state = document.getElementById("state");
if (state) {
  document.addEventListener("htmx:sseOpen", () => (state.textContent = "Following."));
  document.addEventListener("htmx:sseError", () => (state.textContent = "The connection is lost; connecting again."));
  document.addEventListener("htmx:sseClose", () => (state.textContent = "The tail has ended."));
}
