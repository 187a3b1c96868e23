package reput.interop;

import java.util.HashMap;
import java.util.Map;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.http.UriCompliance;
import org.eclipse.jetty.server.HttpConfiguration;
import org.eclipse.jetty.server.HttpConnectionFactory;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;

/**
 * Iceberg's REST catalog over a catalog of JDBC, whose properties are the arguments, NAME=VALUE.
 * Prints its port when it can be used, and ends with its stdin.
 */
public final class IcebergCatalog {
    private IcebergCatalog() {
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> properties = new HashMap<>();
        for (String argument : arguments) {
            int at = argument.indexOf('=');
            properties.put(argument.substring(0, at), argument.substring(at + 1));
        }
        JdbcCatalog catalog = new JdbcCatalog();
        catalog.initialize("lake", properties);

        ServletHandler servlets = new ServletHandler();
        // clients part a namespace of several names by %1F
        servlets.setDecodeAmbiguousURIs(true);
        servlets.addServletWithMapping(
            new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        ServletContextHandler context = new ServletContextHandler();
        context.setServletHandler(servlets);

        HttpConfiguration http = new HttpConfiguration();
        http.setUriCompliance(UriCompliance.UNSAFE);
        Server server = new Server();
        ServerConnector connector = new ServerConnector(server, new HttpConnectionFactory(http));
        connector.setHost("127.0.0.1");
        server.addConnector(connector);
        server.setHandler(context);
        server.start();
        System.out.println(connector.getLocalPort());
        System.in.transferTo(java.io.OutputStream.nullOutputStream());
        server.stop();
        System.exit(0);
    }
}
