// The source of numbers of `clearhead view`: GET requests to the server that sent this page.

export function servedSource(base = "/api") {
  async function ask(path, query, signal) {
    const pairs = Object.entries(query ?? {}).filter(([, v]) => v !== undefined && v !== null);
    const search = pairs.length ? `?${new URLSearchParams(pairs)}` : "";
    let answer;
    try {
      answer = await fetch(`${base}/${path}${search}`, { signal, credentials: "omit" });
    } catch (error) {
      if (error?.name === "AbortError") throw error;
      throw new Error("the server does not answer: is `clearhead view` still running?");
    }
    if (answer.ok) return answer;
    let words = `the server answered ${answer.status}`;
    try { words = (await answer.json()).error ?? words; } catch { /* not JSON: the status says enough */ }
    throw new Error(words);
  }
  const json = async (path, query, { signal } = {}) => (await ask(path, query, signal)).json();
  const bytes = async (path, query, { signal } = {}) => (await ask(path, query, signal)).arrayBuffer();
  const floats = async (...args) => new Float32Array(await bytes(...args));
  const of = (tab, head) => (head ? `${encodeURIComponent(tab)}/${encodeURIComponent(head)}` : encodeURIComponent(tab));

  return {
    kind: "served",
    about: (opts) => json("about", null, opts),
    grid: (tab, opts) => json(`${of(tab)}/grid`, null, opts),
    head: (tab, head, where, opts) => json(of(tab, head), where, opts),
    tokens: (tab, where, from, to, opts) => json(`${of(tab)}/tokens`, { ...where, from, to }, opts),
    search: (tab, q, where, opts) => json(`${of(tab)}/search`, { q, ...where }, opts),
    async tile(tab, head, reduce, z, ty, tx, where, opts) {
      return new Uint16Array(await bytes(`${of(tab, head)}/tile/${reduce}/${z}/${ty}/${tx}`, where, opts));
    },
    async cells(tab, head, i0, i1, j0, j1, where, opts) {
      const both = await floats(`${of(tab, head)}/cells`, { i0, i1, j0, j1, ...where }, opts);
      const half = both.length / 2;
      return { weights: both.subarray(0, half), scores: both.subarray(half) };
    },
    async rows(tab, head, where, opts) {
      const all = await floats(`${of(tab, head)}/rows`, where, opts);
      const T = all.length / 4;
      const part = (n) => all.subarray(n * T, (n + 1) * T);
      return { entropy: part(0), normalized: part(1), maxProb: part(2), visible: part(3) };
    },
    received: (tab, head, where, opts) => floats(`${of(tab, head)}/received`, where, opts),
    row: (tab, head, i, where, opts) => floats(`${of(tab, head)}/row/${i}`, where, opts),
    column: (tab, head, j, where, opts) => floats(`${of(tab, head)}/column/${j}`, where, opts),
    link: (tab, i, j, where, opts) => json(`${of(tab)}/link`, { i, j, ...where }, opts),
    progress: (tab, head, reduce, where, opts) => json(`${of(tab, head)}/progress/${reduce}`, where, opts),
  };
}
