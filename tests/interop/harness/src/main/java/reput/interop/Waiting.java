package reput.interop;

import java.time.Duration;
import java.util.concurrent.Callable;

/** Bounded polling: no wait of this harness may hang a test run. */
final class Waiting {
    private static final long POLL_MILLIS = 20;

    private Waiting() {
    }

    /** Returns once {@code condition} holds; names {@code what} when it does not in time. */
    static void until(String what, Duration limit, Callable<Boolean> condition) throws Exception {
        long deadline = System.nanoTime() + limit.toNanos();
        while (!condition.call()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(
                    "waited " + limit.toSeconds() + " s in vain for: " + what);
            }
            Thread.sleep(POLL_MILLIS);
        }
    }
}
