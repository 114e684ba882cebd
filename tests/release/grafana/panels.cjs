// What Grafana shows for panels and responses of Prometheus, computed by Grafana's own packages.
//
//   node panels.cjs MODULES identifiers         units, matchers, reducers, transformations and color modes
//   node panels.cjs MODULES show panels.json    what each panel shows
//
// MODULES is the folder with node_modules. Output is JSON.
//
// Input of `show`: {variables: {NAME: TEXT}, panels: [{key, panel, frames}]}. `panel` is JSON of a dashboard,
// `frames` are what Grafana's server makes of the responses. Output, one object per panel: {key, warnings,
// rows}. A row is a line of a table or one number, bar, slice or series: {HEADING: {text, color, links}}.
// For a series, `text` and `color` are those of its last value, and `line` is its own color.
//
// Not here: panel plugins, which draw, and the template service, which replaces variables.
'use strict';

const { createRequire } = require('node:module');
const { readFileSync } = require('node:fs');
const path = require('node:path');

const [modules, command, input] = process.argv.slice(2);
const load = createRequire(path.join(modules, 'panels.cjs'));

// Grafana's packages run in browsers.
const { window } = new (load('jsdom').JSDOM)('', { url: 'http://localhost/' });
for (const name of ['window', 'document', 'navigator']) {
  Object.defineProperty(globalThis, name, { value: window[name], configurable: true });
}
// The data source imports it to resolve exemplars' links, which no panel has.
const runtime = path.join(modules, 'node_modules/@grafana/runtime/index.js');
require.cache[runtime] = { id: runtime, filename: runtime, loaded: true, exports: {} };
const Module = require('node:module');
const resolve = Module._resolveFilename;
Module._resolveFilename = (request, ...rest) =>
  request === '@grafana/runtime' ? runtime : resolve.call(Module, request, ...rest);

const data = load('@grafana/data');
const { transformV2 } = load('./node_modules/@grafana/prometheus/dist/cjs/result_transformer.cjs');

const THEME = data.createTheme({ colors: { mode: 'dark' } });

data.locationUtil.initialize({
  config: { appSubUrl: '' },
  getVariablesUrlParams: () => ({}),
  getTimeRangeForUrl: () => ({}),
});
data.standardTransformersRegistry.setInit(() =>
  // Transformers with two names are in the list twice.
  [...new Map(Object.values(data.standardTransformers).map((item) => [item.id, item])).values()].map(
    (transformer) => ({
      id: transformer.id,
      name: transformer.name,
      transformation: async () => transformer,
    })
  )
);

// Grafana's core has this table of properties. What panel plugins add to it is `custom`.
const PROPERTIES = {
  unit: data.unitOverrideProcessor,
  decimals: data.numberOverrideProcessor,
  min: data.numberOverrideProcessor,
  max: data.numberOverrideProcessor,
  noValue: data.stringOverrideProcessor,
  displayName: data.displayNameOverrideProcessor,
  color: data.identityOverrideProcessor,
  links: data.dataLinksOverrideProcessor,
  mappings: data.valueMappingsOverrideProcessor,
  thresholds: data.thresholdsOverrideProcessor,
};
const CUSTOM = ['cellOptions'];

function propertyRegistry() {
  const common = { name: '', override: null, editor: null, shouldApply: () => true };
  const standard = Object.entries(PROPERTIES).map(([id, process]) => ({ ...common, id, path: id, process }));
  const custom = CUSTOM.map((name) => ({
    ...common,
    id: `custom.${name}`,
    path: name,
    isCustom: true,
    process: data.identityOverrideProcessor,
  }));
  return new data.FieldConfigOptionsRegistry(() => [...standard, ...custom]);
}

function identifiers() {
  return {
    units: data.getValueFormats().flatMap((group) => group.submenu.map((unit) => unit.value)),
    matchers: data.fieldMatchers.list().map((item) => item.id),
    reducers: data.fieldReducers.list().map((item) => item.id),
    transformations: data.standardTransformersRegistry.list().map((item) => item.id),
    colorModes: data.fieldColorModeRegistry.list().map((item) => item.id),
    mappings: Object.values(data.MappingType),
    properties: propertyRegistry().list().map((item) => item.id),
  };
}

// As Grafana's template service: variables, and fields of the row of a link.
function replacer(variables) {
  return (text, scopedVars, format) =>
    text.replace(/\$\{([^}]+)\}/g, (whole, name) => {
      const field = /^__data\.fields\.(\w+)$/.exec(name);
      if (field === null) {
        return name in variables ? variables[name] : whole;
      }
      const { frame, rowIndex } = scopedVars.__dataContext.value;
      const found = data.getFieldDisplayValuesProxy({ frame, rowIndex })[field[1]];
      if (found === undefined) {
        return whole;
      }
      return format === 'uriencode' ? encodeURIComponent(found.toString()) : found.toString();
    });
}

function cell(display, links) {
  return {
    text: data.formattedValueToString(display),
    color: display.color,
    links: (links ?? []).map((link) => ({ title: link.title, href: link.href })),
  };
}

function tableRows(frames) {
  const [frame, ...others] = frames;
  if (others.length > 0) {
    throw new Error(`a table shows one frame, not ${frames.length}`);
  }
  const shown = frame.fields.filter((field) => !field.config.custom?.hideFrom?.viz);
  return Array.from({ length: frame.length }, (_, row) =>
    Object.fromEntries(
      shown.map((field) => [
        data.getFieldDisplayName(field, frame, frames),
        cell(field.display(field.values[row]), field.getLinks({ valueRowIndex: row })),
      ])
    )
  );
}

function seriesRows(frames) {
  return frames.flatMap((frame) =>
    frame.fields
      .filter((field) => field.type === data.FieldType.number)
      .map((field) => ({
        [data.getFieldDisplayName(field, frame, frames)]: {
          ...cell(field.display(field.values[field.values.length - 1]), []),
          line: data.getFieldSeriesColor(field, THEME).color,
        },
      }))
  );
}

function reducedRows(panel, frames, replaceVariables) {
  const shown = data.getFieldDisplayValues({
    data: frames,
    fieldConfig: panel.fieldConfig,
    reduceOptions: panel.options.reduceOptions,
    replaceVariables,
    theme: THEME,
  });
  return shown.map((value) => ({ [value.display.title ?? '']: cell(value.display, value.getLinks({})) }));
}

async function show({ key, panel, frames }, replaceVariables) {
  const warnings = [];
  console.warn = console.error = (...words) => warnings.push(words.join(' '));
  const response = { data: frames.map((frame) => data.toDataFrame(frame)) };
  const read = transformV2(response, { targets: panel.targets, app: data.CoreApp.Dashboard }, {}).data;
  const changed = await firstValue(
    data.transformDataFrame(panel.transformations ?? [], read, {
      interpolate: (text) => replaceVariables(text, {}),
    })
  );
  const configured = data.applyFieldOverrides({
    data: changed,
    fieldConfig: panel.fieldConfig,
    fieldConfigRegistry: propertyRegistry(),
    replaceVariables,
    theme: THEME,
    timeZone: 'utc',
  });
  let rows;
  if (panel.type === 'table') {
    rows = tableRows(configured);
  } else if (panel.options.reduceOptions !== undefined) {
    rows = reducedRows(panel, configured, replaceVariables);
  } else {
    rows = seriesRows(configured);
  }
  return { key, warnings, rows };
}

function firstValue(stream) {
  return new Promise((done, failed) => {
    let value;
    stream.subscribe({ next: (item) => (value = item), error: failed, complete: () => done(value) });
  });
}

async function main() {
  if (command === 'identifiers') {
    return identifiers();
  }
  const { variables, panels } = JSON.parse(readFileSync(input, 'utf-8'));
  const shown = [];
  for (const panel of panels) {
    try {
      shown.push(await show(panel, replacer(variables)));
    } catch (error) {
      shown.push({ key: panel.key, warnings: [error.stack], rows: [] });
    }
  }
  return shown;
}

main().then(
  (result) => process.stdout.write(JSON.stringify(result)),
  (error) => {
    process.stderr.write(`${error.stack}\n`);
    process.exitCode = 1;
  }
);
