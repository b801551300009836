import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** One NameNode and two DataNodes on the loopback: MiniHdfs DIRECTORY HTTP_PORT. */
public final class MiniHdfs {
  public static void main(String[] arguments) throws Exception {
    Configuration settings = new Configuration();
    settings.set("dfs.replication", "2");
    settings.setInt("dfs.namenode.fs-limits.min-block-size", 0);
    MiniDFSCluster cluster =
        new MiniDFSCluster.Builder(settings, new File(arguments[0]))
            .numDataNodes(2)
            .nameNodeHttpPort(Integer.parseInt(arguments[1]))
            .build();
    cluster.waitActive();
    System.out.println("ready " + cluster.getNameNode().getHttpAddress());
    Thread.currentThread().join();
  }
}
