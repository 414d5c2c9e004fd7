/* Sets the chosen colours before the page is drawn. Not a module, because modules run later. */
{
  try {
    const chosen = JSON.parse(localStorage.getItem("specqd-page") ?? "{}").scheme;
    if (chosen) document.documentElement.dataset.scheme = chosen;
  } catch {
    // The browser forbids storage: no colours were chosen.
  }
}
