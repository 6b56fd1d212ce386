// Draws a pyramid of levels and where the samples of a query lie, as SVG. Computes the operator as its definition does.
(() => {
  "use strict";
  const LEVELS = [[18, 24], [9, 12], [5, 6]];
  const HEADS = 8;
  const POINTS = 4;
  const WIDTH = 220;
  const GAP = 16;
  const SVG = "http://www.w3.org/2000/svg";
  const COLOURS = ["#d1495b", "#edae49", "#00798c", "#30638e", "#8f5db7", "#3f9142", "#c15c17", "#555555"];

  const add = (parent, name, attributes) => {
    const made = document.createElementNS(SVG, name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    return parent.appendChild(made);
  };

  // A picture with an object in it, averaged over the pixels of each level.
  const brightness = (x, y) => {
    const object = Math.exp(-((x - 0.62) ** 2 + (y - 0.42) ** 2) / 0.02);
    return 0.25 + 0.35 * object + 0.2 * (0.5 + 0.5 * Math.sin(9 * x + 5 * y)) + 0.2 * y;
  };
  const values = LEVELS.map(([height, width]) =>
    Array.from({ length: height * width }, (_, at) => {
      const [row, column] = [Math.floor(at / width), at % width];
      return brightness((column + 0.5) / width, (row + 0.5) / height);
    }));

  // The initial offsets of Deformable-DETR, in pixels: a direction for each head, scaled to a square.
  const offset = (head, point) => {
    const angle = (2 * Math.PI * head) / HEADS;
    const [x, y] = [Math.cos(angle), Math.sin(angle)];
    const scale = (point + 1) / Math.max(Math.abs(x), Math.abs(y));
    return [x * scale, y * scale];
  };

  // Every sample of a query: its place in [0, 1], its weight, the pixels around it and their shares.
  const samplesOf = (reference, heads) => {
    const logits = [0, -0.4, -0.8, -1.2];
    const sum = LEVELS.length * logits.reduce((total, logit) => total + Math.exp(logit), 0);
    return heads.flatMap((head) => LEVELS.flatMap(([height, width], level) =>
      logits.map((logit, point) => {
        const [right, down] = offset(head, point);
        const [x, y] = [reference[0] + right / width, reference[1] + down / height];
        const [left, top] = [Math.floor(x * width - 0.5), Math.floor(y * height - 0.5)];
        const pixels = [[top, left], [top, left + 1], [top + 1, left], [top + 1, left + 1]]
          .filter(([row, column]) => row >= 0 && row < height && column >= 0 && column < width)
          .map(([row, column]) => {
            const share = (1 - Math.abs(x * width - 0.5 - column)) * (1 - Math.abs(y * height - 0.5 - row));
            return { row, column, share, value: values[level][row * width + column] };
          });
        return { head, level, point, x, y, weight: Math.exp(logit) / sum, pixels };
      })));
  };

  const outputOf = (samples) => {
    const heads = new Set(samples.map(({ head }) => head)).size;
    return samples.reduce((total, { weight, pixels }) =>
      total + weight * pixels.reduce((found, { share, value }) => found + share * value, 0), 0) / heads;
  };

  const grey = (value) => {
    const shade = Math.round(255 * Math.min(1, Math.max(0, value)));
    return `rgb(${shade}, ${shade}, ${shade})`;
  };

  const start = (root) => {
    let reference = [0.5, 0.5];
    const choice = document.createElement("select");
    choice.setAttribute("aria-label", "head");
    ["all heads", ...Array.from({ length: HEADS }, (_, head) => `head ${head}`)].forEach((text, index) => {
      choice.add(new Option(text, String(index - 1)));
    });
    const height = (WIDTH * LEVELS[0][0]) / LEVELS[0][1];
    const picture = document.createElementNS(SVG, "svg");
    const whole = LEVELS.length * (WIDTH + GAP) + 40;
    Object.entries({ viewBox: `0 0 ${whole} ${height}`, width: "100%", role: "img", tabindex: "0" })
      .forEach(([key, value]) => picture.setAttribute(key, value));
    picture.setAttribute("aria-label", "Three levels of a pyramid with the samples of a query");
    const text = document.createElement("p");
    text.id = "sampling-summary";
    root.append(choice, picture, text);

    const groups = LEVELS.map(([rows, columns], level) => {
      // A picture of its own, which cuts off what lies outside of the level.
      const group = add(picture, "svg", { x: level * (WIDTH + GAP), y: 0, width: WIDTH, height });
      values[level].forEach((value, at) => add(group, "rect", {
        x: ((at % columns) * WIDTH) / columns, y: (Math.floor(at / columns) * height) / rows,
        width: WIDTH / columns, height: height / rows, fill: grey(value),
      }));
      return { group, marks: add(group, "g", {}) };
    });
    const bar = add(picture, "rect", { x: whole - 40, y: 0, width: 40, height, id: "sampling-output" });

    const draw = () => {
      const wanted = Number(choice.value);
      const samples = samplesOf(reference, wanted < 0 ? [...Array(HEADS).keys()] : [wanted]);
      groups.forEach(({ marks }, level) => {
        const [rows, columns] = LEVELS[level];
        marks.replaceChildren();
        const mine = samples.filter((sample) => sample.level === level);
        mine.forEach(({ head, pixels }) => pixels.forEach(({ row, column }) => add(marks, "rect", {
          x: (column * WIDTH) / columns, y: (row * height) / rows, width: WIDTH / columns, height: height / rows,
          fill: "none", stroke: COLOURS[head], "stroke-opacity": 0.6,
        })));
        mine.forEach(({ head, x, y, weight }) => add(marks, "circle", {
          cx: x * WIDTH, cy: y * height, r: 22 * Math.sqrt(weight), fill: COLOURS[head], "fill-opacity": 0.75,
          stroke: "white", "data-x": x, "data-y": y,
        }));
        const [x, y] = [reference[0] * WIDTH, reference[1] * height];
        add(marks, "path", { d: `M${x - 7} ${y}h14M${x} ${y - 7}v14`, stroke: "red", "stroke-width": 2 });
      });
      const output = outputOf(samples);
      bar.setAttribute("fill", grey(output));
      const read = samples.reduce((total, { pixels }) => total + pixels.length, 0);
      const [x, y] = reference.map((place) => place.toFixed(3));
      text.textContent = `Reference (${x}, ${y}): ${samples.length} samples read ${read} pixels; the output is ${output.toFixed(4)}.`;
    };

    const moveTo = (x, y) => {
      reference = [x, y].map((place) => Math.min(1, Math.max(0, place)));
      draw();
    };
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      const place = ((event.clientX - box.left) / box.width) * whole;
      const x = (place % (WIDTH + GAP)) / WIDTH;
      if (place < LEVELS.length * (WIDTH + GAP) && x <= 1) moveTo(x, (event.clientY - box.top) / box.height);
    });
    picture.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      const step = steps[event.key];
      if (!step) return;
      event.preventDefault();
      moveTo(reference[0] + step[0] / 48, reference[1] + step[1] / 36);
    });
    choice.addEventListener("change", draw);
    draw();
  };

  const root = document.getElementById("sampling-demo");
  if (root) start(root);
})();
