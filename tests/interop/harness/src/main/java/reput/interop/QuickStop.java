package reput.interop;

import org.apache.rocketmq.store.DefaultMessageStore;

/**
 * Spares tests most of a stop, which waits for nothing.
 *
 * <p>Each remoting server and client joins a {@code NettyEventExecutor} that polls for connection
 * events three seconds at a time and is not interrupted. A store's {@code shutdown} first sleeps for
 * three seconds, for writers that a test does not have. Interrupting the poll and that sleep ends
 * them early: the poll's thread sees that it was told to stop, and the store goes on to close. No
 * thread is interrupted anywhere else.
 */
final class QuickStop {
    private static final String EVENT_THREAD_NAME_END = "NettyEventExecutor";
    private static final long PAUSE_MILLIS = 20;

    private QuickStop() {
    }

    /** Something that stops a client, a server or a store. */
    interface Stop<E extends Exception> {
        void run() throws E;
    }

    /** Runs a stop to its end. */
    static <E extends Exception> void run(Stop<E> stop) throws E {
        Thread stopping = Thread.currentThread();
        Thread waker = new Thread(() -> wake(stopping), "QuickStop");
        waker.setDaemon(true);
        waker.start();
        try {
            stop.run();
        } finally {
            waker.interrupt();
        }
    }

    private static void wake(Thread stopping) {
        while (!Thread.currentThread().isInterrupted()) {
            for (Thread candidate : Thread.getAllStackTraces().keySet()) {
                if (candidate.getName().endsWith(EVENT_THREAD_NAME_END)) {
                    candidate.interrupt();
                }
            }
            if (sleepsInStore(stopping.getStackTrace())) {
                stopping.interrupt();
            }
            try {
                Thread.sleep(PAUSE_MILLIS);
            } catch (InterruptedException e) {
                return;
            }
        }
    }

    /** Whether the store's own {@code shutdown} calls {@code Thread.sleep} at this moment. */
    private static boolean sleepsInStore(StackTraceElement[] stack) {
        int frame = 0;
        while (frame < stack.length && stack[frame].getClassName().equals(Thread.class.getName())) {
            frame++;
        }
        return frame > 0
            && frame < stack.length
            && stack[frame - 1].getMethodName().equals("sleep")
            && stack[frame].getClassName().equals(DefaultMessageStore.class.getName())
            && stack[frame].getMethodName().equals("shutdown");
    }
}
