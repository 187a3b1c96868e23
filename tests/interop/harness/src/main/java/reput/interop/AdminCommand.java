package reput.interop;

import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.commons.cli.CommandLine;
import org.apache.commons.cli.DefaultParser;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.srvutil.ServerUtil;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * One of mqadmin's commands: one JSON object with what it prints, to stdout or stderr.
 *
 * <p>This is {@code MQAdminStartup.main0} without its logging, for which 4.9 wants a library and a
 * file of its own. Only classes that 4.9 has too are used.
 */
record AdminCommand(String namesrv, String[] words, Protocol protocol) implements Callable<Void> {
    private static final String NAMESRV = "rocketmq.namesrv.addr";

    static {
        MQAdminStartup.initCommand();
    }

    static AdminCommand parse(List<String> arguments, Protocol protocol) {
        String[] words = arguments.subList(1, arguments.size()).toArray(new String[0]);
        return new AdminCommand(arguments.get(0), words, protocol);
    }

    @Override
    public Void call() throws Exception {
        System.setProperty(NAMESRV, namesrv);
        try {
            protocol.json(Map.of("output", output(words)));
        } finally {
            System.clearProperty(NAMESRV);
        }
        return null;
    }

    /** What a command prints. Where the client could not connect or send, nothing was asked. */
    private static String output(String[] words) throws Exception {
        String text = printed(words);
        boolean wasAsked = !text.contains("RemotingConnectException")
            && !text.contains("RemotingSendRequestException");
        return wasAsked ? text : printed(words);
    }

    private static String printed(String[] words) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream out = System.out;
        PrintStream errors = System.err;
        PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(capture);
        System.setErr(capture);
        try {
            run(words);
        } catch (Exception e) {
            e.printStackTrace(capture);
        } finally {
            System.setOut(out);
            System.setErr(errors);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }

    private static void run(String[] words) throws Exception {
        SubCommand command = find(words[0]);
        Options options = ServerUtil.buildCommandlineOptions(new Options());
        String[] rest = Arrays.copyOfRange(words, 1, words.length);
        CommandLine line =
            new DefaultParser().parse(command.buildCommandlineOptions(options), rest);
        QuickStop.run(() -> command.execute(line, options, null));
    }

    /** The list of commands has another name in each release. */
    private static SubCommand find(String name) throws Exception {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (field.getType() == List.class) {
                field.setAccessible(true);
                for (Object command : (List<?>) field.get(null)) {
                    if (((SubCommand) command).commandName().equals(name)) {
                        // some keep the client that they have shut down
                        return (SubCommand) command.getClass().getConstructor().newInstance();
                    }
                }
            }
        }
        throw new IllegalArgumentException("no such command: " + name);
    }
}
