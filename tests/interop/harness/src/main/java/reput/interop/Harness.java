package reput.interop;

import java.io.PrintStream;
import java.util.List;
import java.util.concurrent.Callable;

/**
 * Entry point: one subcommand per process, so that a test can kill exactly the part it means to, or
 * a session of those that end by themselves.
 *
 * <p>Exit codes: 0 done, 1 failed (the stack trace is on stderr), 2 wrong arguments.
 */
public final class Harness {
    private static final String USAGE =
        """
        usage: Harness broker STORE_DIR [key=value...] [-- topic:queues...]
               Harness send NAMESRV TOPIC COUNT SEED RATE [LIGHT_QUEUE...]
               Harness drain NAMESRV TOPIC [AT_LEAST TIMEOUT_SECONDS]
               Harness commit NAMESRV TOPIC GROUP [QUEUE:COUNT...]
               Harness consume NAMESRV KIND TOPIC GROUP FILTER FROM
               Harness admin NAMESRV WORD...
               Harness session
               Harness push NAMESRV TOPIC GROUP COUNT
               Harness fresh NAMESRV SERVED TOPIC RATE SIZE
               Harness transact NAMESRV TOPIC GROUP [OUTCOME...]
               Harness boot STORE_DIR [key=value...]
               Harness ask STORE_DIR [key=value...] -- QUESTION...
               Harness strings QUESTION...
               Harness record STORE_DIR QUESTION...
               Harness filter QUESTION...
               Harness frame QUESTION...
               Harness trace QUESTION...
               Harness allocate QUESTION...
               Harness ext DIRECTORY FILE_SIZE QUESTION...
               Harness batch DIRECTORY FILE_SIZE QUESTION...
               Harness paths FILE_SIZE QUESTION...
               Harness auth DIRECTORY QUESTION...
               Harness settings STORE_DIR NAMES QUESTION...
               Harness warm STORE_DIR""";

    private Harness() {
    }

    /** Runs one subcommand and ends the process, daemon threads or not: RocketMQ leaves some running. */
    public static void main(String[] args) {
        PrintStream errors = System.err;
        int exitCode;
        try {
            Protocol protocol = Protocol.takeStdout();
            Callable<Void> command = parse(args, protocol);
            if (command == null) {
                errors.println(USAGE);
                exitCode = 2;
            } else {
                command.call();
                exitCode = 0;
            }
        } catch (Throwable e) {
            e.printStackTrace(errors);
            exitCode = 1;
        }
        errors.flush();
        System.exit(exitCode);
    }

    /** Returns null when the arguments fit no subcommand. */
    static Callable<Void> parse(String[] args, Protocol protocol) {
        if (args.length == 0) {
            return null;
        }
        List<String> rest = List.of(args).subList(1, args.length);
        int count = rest.size();
        return switch (args[0]) {
            case "broker" -> count < 1 ? null : BrokerCommand.parse(rest, protocol);
            case "send" -> count < 5 ? null : SendCommand.parse(rest, protocol);
            case "drain" -> count != 2 && count != 4 ? null : DrainCommand.parse(rest, protocol);
            case "commit" -> count < 3 ? null : CommitCommand.parse(rest, protocol);
            case "consume" -> count != 6 ? null : ConsumeCommand.parse(rest, protocol);
            case "admin" -> count < 2 ? null : AdminCommand.parse(rest, protocol);
            case "session" -> count != 0 ? null : new SessionCommand(protocol);
            case "push" -> count != 4 ? null : PushCommand.parse(rest, protocol);
            case "fresh" -> count != 5 ? null : FreshCommand.parse(rest, protocol);
            case "transact" -> count < 3 ? null : TransactCommand.parse(rest, protocol);
            case "boot" -> count < 1 ? null : BootCommand.parse(rest, protocol);
            case "ask" -> count < 1 ? null : AskCommand.parse(rest, protocol);
            case "strings" -> new QuestionsCommand(rest, StringsCommand::answer, protocol);
            case "record" -> count < 1 ? null : RecordCommand.parse(rest, protocol);
            case "filter" -> new QuestionsCommand(rest, new FilterCommand(), protocol);
            case "allocate" -> new QuestionsCommand(rest, AllocateCommand::answer, protocol);
            case "frame" -> new QuestionsCommand(rest, FrameCommand::answer, protocol);
            case "trace" -> new QuestionsCommand(rest, TraceCommand::answer, protocol);
            case "ext" -> count < 2 ? null : ExtCommand.parse(rest, protocol);
            case "batch" -> count < 2 ? null : BatchCommand.parse(rest, protocol);
            case "auth" -> count < 1 ? null : new QuestionsCommand(
                rest.subList(1, count), new AuthCommand(rest.get(0)), protocol);
            case "paths" -> count < 1 ? null : new QuestionsCommand(
                rest.subList(1, count), new PathsCommand(Integer.parseInt(rest.get(0))), protocol);
            case "settings" -> count < 2 ? null : SettingsCommand.parse(rest, protocol);
            case "warm" -> count != 1 ? null : new WarmCommand(rest.get(0), protocol);
            default -> null;
        };
    }
}
