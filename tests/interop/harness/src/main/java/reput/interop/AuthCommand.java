package reput.interop;

import java.util.List;
import org.apache.rocketmq.auth.authentication.enums.UserStatus;
import org.apache.rocketmq.auth.authentication.enums.UserType;
import org.apache.rocketmq.auth.authentication.model.User;
import org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider;
import org.apache.rocketmq.auth.authorization.enums.Decision;
import org.apache.rocketmq.auth.authorization.enums.PolicyType;
import org.apache.rocketmq.auth.authorization.model.Acl;
import org.apache.rocketmq.auth.authorization.model.Environment;
import org.apache.rocketmq.auth.authorization.model.Policy;
import org.apache.rocketmq.auth.authorization.model.Resource;
import org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.common.action.Action;

/**
 * Writes users and policies as a broker with ACL 2.0 keeps them, each given as a question:
 * {@code user NAME PASSWORD TYPE STATUS} or {@code acl NAME POLICY RESOURCE ACTIONS SOURCES
 * DECISION}, where ACTIONS and SOURCES are separated by commas and SOURCES may be {@code -}.
 */
final class AuthCommand implements QuestionsCommand.Answering {
    private final LocalAuthenticationMetadataProvider users = new LocalAuthenticationMetadataProvider();
    private final LocalAuthorizationMetadataProvider acls = new LocalAuthorizationMetadataProvider();

    AuthCommand(String directory) {
        AuthConfig config = new AuthConfig();
        config.setAuthConfigPath(directory);
        users.initialize(config, () -> null);
        acls.initialize(config, () -> null);
    }

    @Override
    public String answer(String question) throws Exception {
        String[] words = question.split(" ");
        switch (words[0]) {
            case "user" -> {
                User user = User.of(words[1], words[2], UserType.valueOf(words[3]));
                user.setUserStatus(UserStatus.valueOf(words[4]));
                users.createUser(user).get();
            }
            case "acl" -> {
                Policy policy = Policy.of(
                    List.of(Resource.of(words[3])),
                    List.of(words[4].split(",")).stream().map(Action::getByName).toList(),
                    words[5].equals("-") ? null : Environment.of(List.of(words[5].split(","))),
                    Decision.valueOf(words[6]));
                policy.setPolicyType(PolicyType.valueOf(words[2]));
                Acl acl = acls.getAcl(User.of(words[1])).get();
                if (acl == null) {
                    acls.createAcl(Acl.of(User.of(words[1]), policy)).get();
                } else {
                    acl.updatePolicy(policy);
                    acls.updateAcl(acl).get();
                }
            }
            case "close" -> {
                users.shutdown();
                acls.shutdown();
            }
            default -> throw new IllegalArgumentException(question);
        }
        return "";
    }
}
