// The usage report of the page: fetches its rows, names them, and rounds amounts so that they add up.
import { clock, cost, day, energyScale, fixed, orAbsent } from "./format.js";
import { fetchJson } from "./live.js";

const MOST_PAGES = 20;
// The parameters of each period, and the seconds between requests: only today changes all the time.
const PERIODS = {
  today: ["since=today", 20],
  yesterday: ["in=yesterday", 600],
  month: ["since=month", 120],
};
export const PERIOD_NAMES = Object.keys(PERIODS);
const NAMELESS = { user: "in pods, or user unknown", namespace: "outside Kubernetes", pod: "outside pods" };
const OWN = {
  idle: ["Idle", "nobody had the GPU"],
  unattributed: ["Unattributed", "used by an unknown owner"],
  unobserved: ["Unobserved", "gpuledger did not read the GPU"],
};
const NOT_BILLED = { down: "GPU failed", unobserved: "unknown who had the GPU", unwatched: "gpuledger was not running" };
const BILLED = ["owner", "idle", "unattributed"];
const MICROSECONDS = 3_600_000_000n;

/** Seconds until a report of the period is requested again. */
export const refreshSeconds = (period) => PERIODS[period][1];

/** Fetches all pages of the report of a period; with `limit` only the first rows. */
export async function fetchReport(by, period, limit) {
  let found = await fetchJson(`api/v1/energy?by=${encodeURIComponent(by)}&${PERIODS[period][0]}&limit=${limit ?? 1000}`);
  const rows = [...found.rows];
  for (let page = 1; !limit && found.next && page < MOST_PAGES; page += 1) {
    found = await fetchJson(`api/v1/energy?limit=1000&cursor=${encodeURIComponent(found.next)}`);
    rows.push(...found.rows);
  }
  return { ...found, rows, period };
}

/** The name of a key in headings and buttons. */
export function keyName(by) {
  if (by.startsWith("label:")) return by.slice(6);
  return by === "gpu" ? "GPU" : by[0].toUpperCase() + by.slice(1).replace("_", " ");
}

/** The name of a row, and words beside it. */
export function rowName(row, by) {
  const words = row.key.filter(Boolean);
  const gpu = by === "gpu" && words.length === 3 ? [`GPU ${words[1]}`, words[2]] : null;
  if (row.own) return [gpu ? `${gpu[0]}: ${OWN[row.account][0]}` : OWN[row.account][0], OWN[row.account][1]];
  return gpu ?? [words.length ? words.join("/") : (NAMELESS[by] ?? `no ${keyName(by).toLowerCase()}`), ""];
}

/** Divides whole amounts by `unit` so that the quotients add up to the rounded sum: largest remainder first. */
export function apportion(amounts, unit) {
  const known = amounts.filter((amount) => amount !== null);
  const parts = amounts.map((amount) => (amount === null ? null : amount / unit));
  const total = (2n * known.reduce((sum, amount) => sum + amount, 0n) + unit) / (2n * unit);
  const rest = (place) => amounts[place] % unit;
  const order = [...amounts.keys()].filter((place) => amounts[place] !== null).sort((a, b) => Number(rest(b) - rest(a)));
  const missing = Number(total - parts.reduce((sum, part) => sum + (part ?? 0n), 0n));
  for (const place of order.slice(0, missing)) parts[place] += 1n;
  return parts;
}

/** The columns that add up, with their text for whole numbers of the last digit that is shown. */
function columnsOf({ total, currency }) {
  const { unit, digits, joules } = energyScale(total.joules);
  const hours = total.gpu_microseconds / 3.6e9;
  const hourDigits = hours >= 100 ? 1 : hours >= 1 ? 2 : 4;
  const costDigits = total.cost < 1 ? 4 : 2;
  const whole = (value) => (value === null || value === undefined ? null : BigInt(value));
  const money = (row) => (row.decimals?.cost === undefined ? null : BigInt(row.decimals.cost.replace(".", "")));
  const column = (amount, divisor, places, write) => ({
    amounts: (rows) => apportion(rows.map((row) => amount(row)).map((one) => (one === null ? null : one * 10n ** BigInt(places))), divisor),
    text: orAbsent((part) => write(Number(part) / 10 ** places)),
  });
  return {
    cost: column(money, 10n ** 10n, costDigits, (value) => cost(value, currency, total.cost)),
    hours: column((row) => whole(row.gpu_microseconds), MICROSECONDS, hourDigits, (value) => fixed(value, hourDigits)),
    energy: column((row) => whole(row.millijoules), BigInt(joules * 1000), digits, (value) => fixed(value, digits)),
    held: { text: orAbsent((seconds) => fixed(seconds / 3600, hourDigits)) },
    unit,
  };
}

/** The rows of a report as texts: the highest `first` rows, one for the others, and the accounts without an owner. */
export function tableOf(answer, first) {
  const own = answer.own.filter((row) => row.account === "idle" || row.joules > 0 || row.gpu_microseconds > 0);
  own.sort((a, b) => Object.keys(OWN).indexOf(a.account) - Object.keys(OWN).indexOf(b.account) || a.key[1] - b.key[1]);
  const rows = [...answer.rows].sort((a, b) => (b.cost ?? 0) - (a.cost ?? 0) || (b.joules ?? 0) - (a.joules ?? 0) || b.gpu_microseconds - a.gpu_microseconds);
  const all = [...rows, ...own.map((row) => ({ ...row, own: true }))];
  const columns = columnsOf(answer);
  const lines = all.map((row) => ({ row, parts: {}, name: rowName(row, answer.by) }));
  const others = rows.length > first + 1 ? rows.length - first : 0;
  const total = { row: { ...answer.total, total: true }, parts: {}, name: ["Total", ""] };
  const rest = { row: { rest: true, key: [] }, parts: {}, name: [`${fixed(others)} others`, ""] };
  for (const name of ["cost", "hours", "energy"]) {
    columns[name].amounts(all).forEach((part, place) => (lines[place].parts[name] = part));
    [total.parts[name]] = columns[name].amounts([answer.total]);
    rest.parts[name] = sum(lines.slice(first, rows.length).map((line) => line.parts[name]));
  }
  const shown = others ? [...lines.slice(0, first), rest, ...lines.slice(rows.length)] : lines;
  return { columns, lines: shown, total, count: rows.length };
}

function sum(parts) {
  const known = parts.filter((part) => part !== null);
  return known.length ? known.reduce((whole, part) => whole + part, 0n) : null;
}

/** The texts of a line. `~`: rests on a part of a GPU that is not known; `+`: some has no price, no meter or unknown activity. */
export function textsOf({ row, parts }, columns) {
  const priced = row.unpriced_microseconds > 0 || row.unpriced_millijoules > 0 || row.unmetered_gpus > 0;
  const marked = (text, mark, marks) => (marks && text !== columns.cost.text(null) ? text + mark : text);
  return {
    cost: marked(columns.cost.text(parts.cost), "+", priced),
    hours: row.account === "unobserved" ? columns.hours.text(null) : marked(columns.hours.text(parts.hours), "~", row.estimated_microseconds > 0),
    held: marked(columns.held.text(row.total ? null : row.held_gpu_seconds), "+", row.unknown_gpu_seconds > 0),
    energy: marked(columns.energy.text(parts.energy), "+", row.unmetered_gpus > 0),
  };
}

/** Whether the rows add up to the total, and the total to the GPUs' counters and watched time, in whole units. */
export function balanceText(answer, { columns, total }) {
  const add = (rows, amount) => rows.reduce((found, row) => found + (amount(row) ?? 0), 0);
  const rows = [...answer.rows, ...answer.own];
  const [millijoules, microseconds] = ["millijoules", "gpu_microseconds"].map((name) => add(rows, (row) => row[name]));
  const energy = answer.total.millijoules;
  const hours = `${columns.hours.text(total.parts.hours)} GPU-hours`;
  if (answer.next) return "Not all rows are shown: there are too many.";
  // A user of access.mode own gets no amounts of whole GPUs.
  if (microseconds > 0 && !answer.gpus.some((gpu) => Object.keys(gpu.microseconds_by_account).length)) return `These rows are yours, and add up to the total of ${hours}.`;
  const watched = add(answer.gpus, (gpu) => add(BILLED, (account) => gpu.microseconds_by_account?.[account]));
  if (microseconds !== answer.total.gpu_microseconds || watched !== microseconds) {
    return `The rows have ${fixed(microseconds / 1e6, 6)} GPU-seconds, the total ${fixed(answer.total.gpu_microseconds / 1e6, 6)}, the GPUs ${fixed(watched / 1e6, 6)}: please report this.`;
  }
  if (energy === null) return `These rows add up to the total of ${hours}. No GPU is measured: their energy is not known.`;
  if (millijoules !== energy) return `The rows add up to ${fixed(millijoules / 1000, 3)} J, not to the total of ${fixed(energy / 1000, 3)} J: please report this.`;
  const words = `${hours} and ${columns.energy.text(total.parts.energy)} ${columns.unit}`;
  const counted = add(answer.gpus, (gpu) => gpu.millijoules);
  const apart = counted - energy;
  const meters = metersText(answer, counted, columns);
  if (apart) {
    return `These rows add up to the total of ${words}, but the GPUs' ${meters} show ${fixed(Math.abs(apart) / 1000, 3)} J ${apart > 0 ? "more" : "less"}. The ledger does not balance.`;
  }
  const measured = answer.total.unmetered_gpus ? `${meters} of the measured GPUs` : `GPUs' ${meters}`;
  return `These rows add up to the total of ${words}, which equals all billed time of the GPUs, to the microsecond, and the ${measured}, to the millijoule.`;
}

/** What measured the GPUs: their energy counters, or for GPUs without a readable one their power, summed over time. */
function metersText({ gpus, total }, counted, columns) {
  const integrated = Math.round(1000 * gpus.reduce((sum, gpu) => sum + (gpu.integrated_joules ?? 0), 0));
  if (!integrated) return "energy counters";
  if (integrated >= counted) return "power readings, summed over time (no energy counter was read)";
  return `energy counters and power readings (${energyScale(total.joules).write(integrated / 1000)} ${columns.unit} are power summed over time)`;
}

/** What is not in the total, and what it would have cost; empty if there is nothing. */
export function notBilledText(answer, { columns }) {
  const words = Object.entries(NOT_BILLED).map(([account, reason]) => {
    const found = (answer.not_billed ?? []).filter((one) => one.account === account && one.gpu_microseconds > 0);
    const add = (name) => found.reduce((sum, one) => sum + (one[name] ?? 0), 0);
    const [hours] = columns.hours.amounts([{ gpu_microseconds: add("gpu_microseconds") }]);
    const price = add("cost") ? `, ${cost(add("cost"), answer.currency)} at these prices` : "";
    return found.length && `${columns.hours.text(hours)} GPU-hours (${reason}${price})`;
  });
  return words.some(Boolean) ? `Not billed: ${words.filter(Boolean).join("; ")}.` : "";
}

/** When the report begins and ends. */
export function whenText(answer) {
  const at = (unix) => `${day(unix)} ${clock(unix)}`;
  const when = answer.period === "today" ? `since ${clock(answer.since)}` : `${at(answer.since)} to ${at(answer.until)}`;
  return answer.complete ? when : `${when}; the ledger begins later`;
}
