// The console works without this. It refreshes pages part by part, shows how long ago times were, copies ids, checks all boxes, and keeps
// forms from being sent twice.
"use strict";

(() => {
    const REFRESH_INTERVAL_MS = 10_000;

    /** The time of day in UTC, as the pages show it. */
    const clock = () => new Date().toISOString().slice(11, 19) + " UTC";

    /** The way from `root` to `node`, by the positions of elements. */
    const pathTo = (root, node) => {
        const path = [];
        for (let at = node; at !== root; at = at.parentElement) {
            path.unshift([...at.parentElement.children].indexOf(at));
        }
        return path;
    };

    /** Puts `fresh` in the place of `shown`; what has the focus and which details are open stay. */
    const replace = (shown, fresh) => {
        const active = document.activeElement;
        const path = shown.contains(active) && active !== shown ? pathTo(shown, active) : null;
        for (const details of shown.querySelectorAll("details[open][id]")) {
            const same = fresh.querySelector("#" + CSS.escape(details.id));
            if (same) {
                same.open = true;
            }
        }
        const added = document.importNode(fresh, true);
        shown.replaceWith(added);
        enhance(added);
        if (path) {
            const same = path.reduce((at, index) => at && at.children[index], added);
            if (same && same.tagName === active.tagName) {
                same.focus({ preventScroll: true });
            }
        }
    };

    /** The distance of a time from now, by the clock of this machine, in its largest unit. */
    const distance = (time) => {
        const seconds = Math.round((Date.now() - Date.parse(time.dateTime)) / 1_000);
        const units = [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]];
        const [size, unit] = units.find(([size]) => Math.abs(seconds) >= size) || [1, "s"];
        const count = Math.floor(Math.abs(seconds) / size);
        return seconds < 0 ? `in ${count} ${unit}` : `${count} ${unit} ago`;
    };

    /** Writes the distance from now beside each time. */
    const showAges = (root) => {
        for (const time of root.querySelectorAll("time[datetime]")) {
            let age = time.nextElementSibling;
            if (!age || !age.classList.contains("age")) {
                age = document.createElement("span");
                age.className = "age";
                time.after(" ", age);
            }
            age.textContent = "(" + distance(time) + ")";
        }
    };

    /** Shows ages, and adds a button to copy to each id. */
    const enhance = (root) => {
        showAges(root);
        if (!navigator.clipboard) {
            return;
        }
        for (const text of root.querySelectorAll("[data-copy]:not([data-copyable])")) {
            text.dataset.copyable = "";
            const button = document.createElement("button");
            button.type = "button";
            button.className = "copy";
            button.textContent = "Copy";
            button.setAttribute("aria-label", "Copy " + (text.dataset.copyLabel || text.textContent));
            button.addEventListener("click", async () => {
                try {
                    await navigator.clipboard.writeText(text.dataset.copy);
                    button.textContent = "Copied";
                } catch {
                    button.textContent = "Not copied";
                }
                setTimeout(() => { button.textContent = "Copy"; }, 2_000);
            });
            text.after(button);
        }
    };

    /** Keeps a page up to date that asks for it. */
    const keepFresh = (main) => {
        const state = document.getElementById("refresh-state");
        const link = document.querySelector("[data-refresh-now]");
        const pause = document.createElement("button");
        let paused = false;
        let busy = false;

        const say = (text, failed) => {
            // Only failures are announced: an announcement every few seconds would be noise.
            state.setAttribute("role", failed ? "alert" : "presentation");
            state.textContent = text;
        };
        const refresh = async () => {
            if (busy) {
                return;
            }
            busy = true;
            try {
                const answer = await fetch(location.href, {
                    cache: "no-store",
                    credentials: "same-origin",
                    signal: AbortSignal.timeout(REFRESH_INTERVAL_MS),
                });
                if (answer.redirected) {
                    // The session has ended: the browser shows the sign-in.
                    location.reload();
                    return;
                }
                if (!answer.ok) {
                    throw new Error(String(answer.status));
                }
                const page = new DOMParser().parseFromString(await answer.text(), "text/html");
                for (const shown of main.querySelectorAll("[data-live][id]")) {
                    const fresh = page.getElementById(shown.id);
                    if (fresh) {
                        replace(shown, fresh);
                    }
                }
                // Title and icon have the state of the service.
                document.title = page.title;
                const icon = (root) => root.querySelector("link[rel=icon]");
                icon(document).setAttribute("href", icon(page).getAttribute("href"));
                say("Updated at " + clock(), false);
            } catch {
                say("Could not be refreshed at " + clock() + "; what is shown is older.", true);
            } finally {
                busy = false;
            }
        };

        pause.type = "button";
        pause.className = "quiet";
        pause.textContent = "Pause";
        pause.addEventListener("click", () => {
            paused = !paused;
            pause.textContent = paused ? "Resume" : "Pause";
            say(paused ? "Paused" : "Updated at " + clock(), false);
        });
        link.after(" ", pause);
        link.addEventListener("click", (event) => {
            event.preventDefault();
            refresh();
        });
        document.addEventListener("visibilitychange", () => {
            if (!document.hidden && !paused) {
                refresh();
            }
        });
        setInterval(() => {
            if (!document.hidden && !paused) {
                refresh();
            }
        }, REFRESH_INTERVAL_MS);
        say("Updated at " + clock(), false);
    };

    /** A box that checks all boxes of the name that it gives, and is checked while all of them are. */
    const checkAll = (box) => {
        const others = [...document.querySelectorAll('input[type="checkbox"][name="' + CSS.escape(box.dataset.checkAll) + '"]')];
        const follow = () => { box.checked = others.every((other) => other.checked); };
        box.addEventListener("change", () => {
            for (const other of others) {
                other.checked = box.checked;
            }
        });
        for (const other of others) {
            other.addEventListener("change", follow);
        }
        // A browser restores what was checked when a page comes back.
        addEventListener("pageshow", follow);
        box.closest("[hidden]").hidden = false;
    };

    document.addEventListener("submit", (event) => {
        const form = event.target;
        if (form.method === "post" && form.dataset.sent !== undefined) {
            event.preventDefault();
            return;
        }
        form.dataset.sent = "";
        document.documentElement.classList.add("loading");
        document.getElementById("main")?.setAttribute("aria-busy", "true");
    });
    // A page that comes back from the browser's memory may send its forms again.
    addEventListener("pageshow", () => {
        document.documentElement.classList.remove("loading");
        document.getElementById("main")?.removeAttribute("aria-busy");
        for (const form of document.forms) {
            delete form.dataset.sent;
        }
    });

    const main = document.querySelector("main[data-refresh]");
    enhance(document);
    setInterval(() => { showAges(document); }, REFRESH_INTERVAL_MS);
    for (const box of document.querySelectorAll("[data-check-all]")) {
        checkAll(box);
    }
    if (main) {
        keepFresh(main);
    }
})();
