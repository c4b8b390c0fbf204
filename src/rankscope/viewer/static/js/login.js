// Where a page is asked for without its token: asks for it, once. The answer sets a cookie. Another site's link comes without
// the cookie (SameSite=Strict): this page has it, and goes on by itself.

const GONE_ON = "?login";

function goOn() {
  location.replace(location.pathname + GONE_ON + location.hash); // another address: the same one would not be loaded
}

async function start() {
  if (location.search !== GONE_ON && (await fetch("/api/state")).ok) return goOn();
  const input = /** @type {HTMLInputElement} */ (document.getElementById("token"));
  document.getElementById("login")?.addEventListener("submit", async (event) => {
    event.preventDefault();
    const token = input.value.trim().replace(/^.*token=/, "").replace(/[#&].*$/, "");
    if ((await fetch(`/?token=${encodeURIComponent(token)}`)).ok) return goOn();
    /** @type {HTMLElement} */ (document.getElementById("wrong")).hidden = false;
    return input.select();
  });
  return input.focus();
}

start();
