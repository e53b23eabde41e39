// Rows of a long list; only those near the window are in the page. The library that measures and places them is loaded when
// a page first has a long list.
import { useEffect, useLayoutEffect, useMemo, useRef, useSignal } from "./runtime.js";

const UNTIL_LOADED = 30;
// Up to this number all rows are drawn, because the library would cost more than it saves.
const ALL_DRAWN = 40;
const BEYOND = 8;

/** @type {Promise<typeof import("@tanstack/virtual-core")> | undefined} */
let library;

function load() {
  if (!library) {
    // The library reads process.env.NODE_ENV, which a bundler would replace; there is no bundler here.
    Object.assign(globalThis, { process: { env: { NODE_ENV: "production" } } });
    library = import("@tanstack/virtual-core");
  }
  return library;
}

/**
 * @typedef {{indexes: number[], before: number, after: number, isScrolling: boolean, measure: (element: any) => void,
 *   goTo: (index: number) => void}} VirtualRows the drawn rows, and the height in pixels of the others before and after them
 */

/**
 * The rows near the window; the window itself scrolls. Each drawn row must have `data-index`, and `measure` as its ref.
 * @param {{count: number, height: number, keyOf: (index: number) => string | number,
 *   list: {current: HTMLElement | null}}} options `height`: the estimated height of a row, in pixels
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
  // The top of the list moves when the content above it changes: when data arrive, or when the page grows. Scrolling alone
  // does not move it, and to measure during a scroll would cost a layout for each row.
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
