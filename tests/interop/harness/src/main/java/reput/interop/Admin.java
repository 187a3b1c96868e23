package reput.interop;

import org.apache.rocketmq.tools.command.MQAdminStartup;

/** RocketMQ's own administration command, which waits for nothing when it stops. */
public final class Admin {
    private Admin() {
    }

    /** Passes everything on. */
    public static void main(String[] args) {
        QuickStop.run(() -> MQAdminStartup.main(args));
    }
}
