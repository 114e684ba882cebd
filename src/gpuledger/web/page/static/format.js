// Formats numbers and times for people. Absent values are a word or a dash, never a zero.

export const NOT_REPORTED = "not reported";
export const DASH = "\u2013";
const SPACE = "\u00a0";

const formats = new Map();

/** A number with a fixed number of decimals. */
export function fixed(value, digits = 0) {
  if (!formats.has(digits)) {
    formats.set(digits, new Intl.NumberFormat("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  }
  return formats.get(digits).format(value);
}

/** A number with about three digits. */
function short(value) {
  const size = Math.abs(value);
  return fixed(value, size >= 99.95 || value === 0 ? 0 : size >= 9.995 ? 1 : 2);
}

function scaled(value, base, units) {
  let step = 0;
  while (step < units.length - 1 && Math.abs(value) >= base * 0.9995) {
    value /= base;
    step += 1;
  }
  return short(value) + SPACE + units[step];
}

/** A formatter that writes a dash for an absent value. */
export const orAbsent = (form) => (value, absent = DASH) => (value === null || value === undefined ? absent : form(value));

export const percent = orAbsent((ratio) => `${fixed(ratio * 100)}${SPACE}%`);
export const watts = orAbsent((value) => (value >= 9999.5 ? scaled(value, 1000, ["W", "kW", "MW"]) : `${fixed(value, value < 9.95 && value > 0 ? 1 : 0)}${SPACE}W`));
export const joules = orAbsent((value) => scaled(value, 1000, ["J", "kJ", "MJ", "GJ", "TJ"]));
export const celsius = orAbsent((value) => `${fixed(value)}${SPACE}\u00b0C`);
export const bytes = orAbsent((value) =>
  value < 1024 ? `${fixed(value)}${SPACE}B` : scaled(value / 1024, 1024, ["KiB", "MiB", "GiB", "TiB"]),
);

/** A part and the whole, in the unit of the whole: 71 / 80 GiB. */
export function bytesOf(part, whole) {
  if (part === null) return NOT_REPORTED;
  if (whole === null) return bytes(part);
  const unit = whole >= 2 ** 30 ? ["GiB", 2 ** 30] : ["MiB", 2 ** 20];
  const digits = (value) => (value === 0 || value / unit[1] >= 99.95 ? 0 : 1);
  return `${fixed(part / unit[1], digits(part))} / ${fixed(whole / unit[1], whole / unit[1] >= 10 ? 0 : 1)}${SPACE}${unit[0]}`;
}

export const wattsOf = (part, whole) => (part === null ? NOT_REPORTED : whole === null ? watts(part) : `${fixed(part)} / ${fixed(whole)}${SPACE}W`);
export const kilograms = orAbsent((grams) => fixed(grams / 1000, 2));
export const count = orAbsent((value) => fixed(value));

/** Energy in watt-hours, for hours and days. */
export const energy = orAbsent((value) => scaled(value / 3600, 1000, ["Wh", "kWh", "MWh", "GWh"]));

/** The unit (of `joules`) and the number of decimals for a column of energies, so that its rows are comparable. */
export function energyScale(most) {
  const unit = most >= 3.6e9 ? ["MWh", 3.6e9] : most >= 3.6e6 ? ["kWh", 3.6e6] : ["Wh", 3600];
  const digits = most / unit[1] >= 100 ? 1 : most / unit[1] >= 10 ? 2 : 3;
  return { unit: unit[0], joules: unit[1], digits, write: orAbsent((value) => fixed(value / unit[1], value === 0 ? 0 : digits)) };
}

/** A duration in its two largest units: 12 s, 3 min, 5 h 20 min, 2 d 4 h. */
export const duration = orAbsent((seconds) => {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole}${SPACE}s`;
  if (whole < 3600) return `${Math.floor(whole / 60)}${SPACE}min`;
  const [big, small, names] =
    whole < 86400
      ? [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60), ["h", "min"]]
      : [Math.floor(whole / 86400), Math.floor((whole % 86400) / 3600), ["d", "h"]];
  return `${big}${SPACE}${names[0]}` + (small ? ` ${small}${SPACE}${names[1]}` : "");
});

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const CLOCK_SECONDS = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export const clock = (unix) => CLOCK.format(unix * 1000);
export const clockSeconds = (unix) => CLOCK_SECONDS.format(unix * 1000);
export const day = (unix) => DAY.format(unix * 1000);

/** A time, with the day when it is not today. */
export function moment(unix, now) {
  const time = clockSeconds(unix);
  return day(unix) === day(now) ? time : `${day(unix)} ${time}`;
}

const money = new Map();

/** A cost in the configured currency, or without one; a small total (`most`) gets more decimals. */
export function cost(value, currency, most = value) {
  if (value === null || value === undefined) return DASH;
  const digits = most < 1 ? 4 : 2;
  const key = `${currency} ${digits}`;
  if (!money.has(key)) {
    const unit = currency ? { style: "currency", currency } : {};
    money.set(key, new Intl.NumberFormat("en", { ...unit, minimumFractionDigits: digits, maximumFractionDigits: digits }));
  }
  return money.get(key).format(value);
}

export const plural = (number, one, many = `${one}s`) => `${fixed(number)} ${number === 1 ? one : many}`;
