/** Files: those of the message that is being written, and those of a message that was sent. */

import { useEffect, useState } from "preact/hooks";
import type { MessageFile } from "../api/wire.ts";
import type { AttachedFiles } from "../model/attached.ts";
import { useApp } from "./context.ts";
import { Icon } from "./icons.tsx";

/** Pictures that every browser shows. Anything else, SVG above all, is only offered for saving. */
const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

/** A larger picture is not loaded to be shown small. */
const LARGEST_SHOWN = 5_000_000;

export function AttachedList({ files }: { files: AttachedFiles }) {
  const all = files.all.value;
  if (all.length === 0) return null;
  return (
    <ul class="attached" aria-label="Attached files">
      {all.map((file) => (
        <li key={file.id} class={file.state}>
          {file.state === "ready" ? <Picture file={file} /> : null}
          <span class="file-name" title={file.name}>
            {file.name}
          </span>
          <span class="aside" role={file.state === "failed" ? "alert" : undefined}>
            {file.state === "uploading" ? "uploading …" : file.state === "failed" ? file.problem : sized(file.size)}
          </span>
          <button type="button" class="quiet" aria-label={`Remove ${file.name}`} onClick={() => files.remove(file.id)}>
            <Icon name="close" />
          </button>
        </li>
      ))}
    </ul>
  );
}

export function MessageFiles({ files }: { files: MessageFile[] }) {
  const app = useApp();
  if (files.length === 0) return null;
  const save = (file: MessageFile): void =>
    void app.attempt(async () => {
      const url = URL.createObjectURL(await app.server.content(file.id));
      const link = document.createElement("a");
      link.href = url;
      link.download = file.name;
      link.click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
    });
  return (
    <ul class="attached sent" aria-label="Files of this message">
      {files.map((file) => (
        <li key={file.id}>
          <button type="button" title={`Save ${file.name}`} onClick={() => save(file)}>
            <Picture file={file} />
            <span class="file-name">{file.name}</span>
            <span class="aside">{sized(file.size)}</span>
          </button>
        </li>
      ))}
    </ul>
  );
}

/** A small picture of the file, if it is one; its content needs the person's key, so it can't be named by a URL. */
function Picture({ file }: { file: MessageFile }) {
  const app = useApp();
  const [url, setUrl] = useState("");
  const isShown = PICTURES.has(file.media_type) && file.size <= LARGEST_SHOWN;
  useEffect(() => {
    if (!isShown) return;
    let made = "";
    let isOver = false;
    app.server.content(file.id).then(
      (content) => {
        if (isOver) return;
        made = URL.createObjectURL(content);
        setUrl(made);
      },
      () => {}, // It was deleted: its name stays.
    );
    return () => {
      isOver = true;
      if (made) URL.revokeObjectURL(made);
    };
  }, [file.id, isShown]);
  return url ? <img src={url} alt="" /> : <Icon name="file" />;
}

export function sized(bytes: number): string {
  if (bytes < 1_000) return `${bytes} B`;
  return bytes < 1_000_000 ? `${Math.round(bytes / 1_000)} KB` : `${(bytes / 1_000_000).toFixed(1)} MB`;
}
