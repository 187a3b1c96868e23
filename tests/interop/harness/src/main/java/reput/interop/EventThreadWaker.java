package reput.interop;

/**
 * Spares tests most of a broker's or client's stop, which is waiting for idle network threads.
 *
 * <p>Each remoting server and client joins a {@code NettyEventExecutor} that polls for connection
 * events three seconds at a time and is not interrupted. Interrupting that poll ends it early; the
 * thread then sees that it was told to stop. It handles connections only, never the store.
 */
final class EventThreadWaker {
    private static final String THREAD_NAME_END = "NettyEventExecutor";
    private static final long PAUSE_MILLIS = 100;

    private final Thread thread = new Thread(this::run, "EventThreadWaker");
    private volatile boolean closed;

    private EventThreadWaker() {
    }

    /** Runs a shutdown. */
    static void during(Runnable shutdown) {
        EventThreadWaker waker = new EventThreadWaker();
        waker.thread.setDaemon(true);
        waker.thread.start();
        try {
            shutdown.run();
        } finally {
            waker.closed = true;
        }
    }

    private void run() {
        while (!closed) {
            for (Thread candidate : Thread.getAllStackTraces().keySet()) {
                if (candidate.getName().endsWith(THREAD_NAME_END)) {
                    candidate.interrupt();
                }
            }
            try {
                Thread.sleep(PAUSE_MILLIS);
            } catch (InterruptedException e) {
                return;
            }
        }
    }
}
