/* Sets the chosen colours before the page is drawn. Not a module, because modules run later. */
{
  const chosen = JSON.parse(localStorage.getItem("specqd-page") ?? "{}").scheme;
  if (chosen) document.documentElement.dataset.scheme = chosen;
}
