import assert from "node:assert/strict";
import { test } from "node:test";
import { FrameReader } from "../src/api/frames.ts";

const STREAM = 'retry: 1000\n\nid: 1\nevent: event\ndata: {"a":"ü"}\n\n: still here\n\nid: 1/m/0/4\nevent: delta\ndata: {"text":"🙂"}\n\n';

test("frames are the same wherever the bytes are cut", () => {
  const bytes = new TextEncoder().encode(STREAM);
  const whole = new FrameReader().push(bytes);
  assert.deepEqual(whole.map((frame) => [frame.event, frame.id]), [["event", "1"], ["delta", "1/m/0/4"]]);
  for (let cut = 0; cut <= bytes.length; cut += 1) {
    const reader = new FrameReader();
    assert.deepEqual([...reader.push(bytes.slice(0, cut)), ...reader.push(bytes.slice(cut))], whole);
  }
});

test("half a frame is not told", () => {
  assert.deepEqual(new FrameReader().push(new TextEncoder().encode("id: 1\nevent: event\ndata: {}\n")), []);
});
