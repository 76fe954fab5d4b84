// Start the page of a report: unpack the data in the page, then build the timeline and the table.

async function startReport() {
  const packed = document.getElementById("data").textContent.trim();
  buildPage(new RunData(await unpackBlock(decodeBase64(packed))));
}

function buildPage(data, fetchMore = null) {
  const detail = new ItemDetail(data, fetchMore);
  const open = (row) => detail.show(row);
  const table = new ItemTable(data, document.getElementById("items-host"), open);
  const timeline = new Timeline(data, document.getElementById("timeline-host"), open);
  for (const button of document.querySelectorAll("[data-cause]")) connectCause(button, table);
  for (const part of document.querySelectorAll("[data-needs-script]")) part.hidden = false;
  document.getElementById("no-script")?.remove();
  timeline.draw();
  const page = { data, table, timeline, detail };
  window.agentosPage = page; // for measurements and tests
  document.documentElement.dataset.ready = "true";
  return page;
}

function connectCause(button, table) {
  button.hidden = false;
  button.addEventListener("click", () => {
    table.showCause(Number(button.dataset.cause));
    document.getElementById("items").scrollIntoView();
  });
}

function showProblem(error) {
  const note = document.getElementById("no-script");
  if (note) note.textContent = `The timeline and the items cannot be shown: ${error.message || error}`;
}
