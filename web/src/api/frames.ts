/** Parses server-sent events from bytes, wherever the bytes are cut. */

export interface Frame {
  event: string;
  data: string;
  id: string | null;
}

export class FrameReader {
  private readonly decoder = new TextDecoder();
  private rest = "";

  /** The frames that are complete now, without comments, which only keep the connection alive. */
  push(bytes: Uint8Array): Frame[] {
    const parts = (this.rest + this.decoder.decode(bytes, { stream: true })).split("\n\n");
    this.rest = parts.pop() ?? "";
    return parts.map(parse).filter((frame): frame is Frame => frame !== null);
  }
}

function parse(text: string): Frame | null {
  let event = "message";
  let id: string | null = null;
  const data: string[] = [];
  for (const line of text.split("\n")) {
    const colon = line.indexOf(":");
    if (colon <= 0) continue;
    const value = line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    const name = line.slice(0, colon);
    if (name === "event") event = value;
    else if (name === "id") id = value;
    else if (name === "data") data.push(value);
  }
  return data.length ? { event, data: data.join("\n"), id } : null;
}
