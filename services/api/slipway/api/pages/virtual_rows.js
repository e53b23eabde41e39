// Rows of a long list of which only those near the window are in the page. The library that measures and places them is
// loaded when a page first has such a list.
import { useEffect, useLayoutEffect, useMemo, useRef, useSignal } from "./runtime.js";

const UNTIL_LOADED = 30;
// So many are drawn as they are: the library would cost more than it spares.
const ALL_DRAWN = 40;
const BEYOND = 8;

/** @type {Promise<typeof import("@tanstack/virtual-core")> | undefined} */
let library;

function load() {
  if (!library) {
    // It asks for the word of its bundler; a browser has none.
    Object.assign(globalThis, { process: { env: { NODE_ENV: "production" } } });
    library = import("@tanstack/virtual-core");
  }
  return library;
}

/**
 * @typedef {{indexes: number[], before: number, after: number, isScrolling: boolean, measure: (element: any) => void,
 *   goTo: (index: number) => void}} VirtualRows what is drawn, and the pixels of what is not, before and after it
 */

/**
 * The rows that are near the window, which scrolls as a whole. Each drawn row has `data-index`, and `measure` as its ref.
 * @param {{count: number, height: number, keyOf: (index: number) => string | number,
 *   list: {current: HTMLElement | null}}} options `height`: about that of a row, in pixels
 * @returns {VirtualRows}
 */
export function useVirtualRows({ count, height, keyOf, list }) {
  const loaded = useSignal(/** @type {any} */ (null));
  const version = useSignal(0);
  const margin = useSignal(0);
  const wanted = useRef(-1);
  const isLong = count > ALL_DRAWN;
  useEffect(() => {
    let isOver = false;
    if (isLong) load().then((found) => isOver || (loaded.value = found)).catch(() => undefined);
    return () => (isOver = true);
  }, [isLong]);
  // Where the list begins changes with what is above it: as data come, or as the page grows. A scroll alone does not change it,
  // and to look then would cost a layout for each row.
  const place = () => {
    const top = list.current ? Math.round(list.current.getBoundingClientRect().top + scrollY) : 0;
    if (Math.abs(top - margin.peek()) > 1) margin.value = top;
  };
  const isDrawn = count > 0;
  useEffect(() => {
    if (!isDrawn) return undefined;
    const watch = new ResizeObserver(place);
    watch.observe(document.body);
    return () => watch.disconnect();
  }, [isDrawn]);
  const core = loaded.value;
  const rows = useMemo(() => core && new core.Virtualizer(optionsOf(core, { count, height, keyOf, margin: 0 }, version)), [core]);
  rows?.setOptions(optionsOf(core, { count, height, keyOf, margin: margin.value }, version));
  useLayoutEffect(() => rows?._didMount(), [rows]);
  useLayoutEffect(() => {
    rows?._willUpdate();
    if (!rows?.isScrolling) place();
    if (rows && wanted.current >= 0) {
      const index = wanted.current;
      wanted.current = -1;
      rows.scrollToIndex(index, { align: "center" });
    }
  });
  const goTo = (/** @type {number} */ index) => {
    wanted.current = index;
    version.value += 1;
  };
  if (!rows) {
    const shown = isLong ? UNTIL_LOADED : count;
    return { indexes: Array.from({ length: shown }, (_, index) => index), before: 0, after: (count - shown) * height, isScrolling: false, measure: () => undefined, goTo };
  }
  version.value;
  const items = rows.getVirtualItems();
  const before = items.length ? items[0].start - margin.value : 0;
  return { indexes: items.map((item) => item.index), before, after: items.length ? rows.getTotalSize() - (items.at(-1).end - margin.value) : 0,
    isScrolling: rows.isScrolling, measure: rows.measureElement, goTo };
}

function optionsOf(core, { count, height, keyOf, margin }, version) {
  return {
    count,
    estimateSize: () => height,
    getItemKey: keyOf,
    getScrollElement: () => window,
    initialOffset: () => scrollY,
    initialRect: { width: innerWidth, height: innerHeight },
    observeElementRect: core.observeWindowRect,
    observeElementOffset: core.observeWindowOffset,
    scrollToFn: core.windowScroll,
    scrollMargin: margin,
    overscan: BEYOND,
    onChange: () => (version.value += 1),
  };
}
