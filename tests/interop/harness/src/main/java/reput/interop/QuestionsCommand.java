package reput.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;

/** Answers questions, which came as arguments: one JSON object with the answers, in their order. */
record QuestionsCommand(List<String> questions, Answering asked, Protocol protocol)
    implements Callable<Void> {
    /** Whatever can be asked. */
    interface Answering {
        String answer(String question) throws Exception;
    }

    @Override
    public Void call() throws Exception {
        protocol.json(Map.of("answers", answers(questions, asked)));
        return null;
    }

    static List<String> answers(List<String> questions, Answering asked) throws Exception {
        List<String> answers = new ArrayList<>();
        for (String question : questions) {
            answers.add(asked.answer(question));
        }
        return answers;
    }
}
