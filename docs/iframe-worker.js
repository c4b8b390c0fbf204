/* The search of a page that is opened from disk: browsers start no Worker there, so its script runs in a hidden frame. */
"use strict";
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.answer = (data) => {
        const message = new MessageEvent("message", { data: structuredClone(data) });
        setTimeout(() => {
          this.onmessage?.(message);
          this.dispatchEvent(message);
        });
      };
      this.started = new Promise((resolve) => {
        this.frame.started = resolve;
      });
      document.body.append(this.frame);
      const page = this.frame.contentDocument;
      page.write(
        "<script>postMessage = (data) => frameElement.answer(data);</script>",
        `<script src="${url}" onload="frameElement.started()"></script>`,
      );
      page.close();
    }

    postMessage(data) {
      const message = new MessageEvent("message", { data: structuredClone(data) });
      this.started.then(() => setTimeout(() => this.frame.contentWindow.dispatchEvent(message)));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
